"""What administrators ask of a broker: statistics, producers, entries of a queue, copies, lists, accounts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from metaq.protocols.remoting.bodies.groups import SubscriptionData, SubscriptionGroupConfig
from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.bodies.offsets import ConsumeStats
from metaq.protocols.remoting.bodies.registration import TopicConfigBody
from metaq.protocols.remoting.wire_types import I32, I64, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatsItem(JsonBody):
    """A figure in a time: its sum, its sum a second, and its sum an event."""

    sum: I64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStats(JsonBody):
    """A figure in the last minute, hour and day."""

    NAME = "BrokerStatsData"

    stats_minute: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_day: BrokerStatsItem


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatsList(JsonBody):
    """The offsets of all groups, each with one entry for each topic; ``total_diff`` is what they have not read."""

    broker_addr: str
    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    total_diff: I64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo(JsonBody):
    """A producer, and the time of its last heartbeat, in milliseconds."""

    client_id: str
    remote_ip: Annotated[str, Wire("remoteIP")]
    language: str
    version: I32
    last_update_timestamp: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTableInfo(JsonBody):
    """The producers of all groups."""

    data: dict[str, tuple[ProducerInfo, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry(JsonBody):
    """Where a message is, its size as a record, and the hash of its tag."""

    NAME = "ConsumeQueueData"

    physic_offset: I64
    physic_size: I32
    tags_code: I64
    eval: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntries(JsonBody):
    """Entries of a queue, and its first and its next offset. With a group: its subscription, or why there is none."""

    NAME = "QueryConsumeQueueResponseBody"

    queue_data: tuple[QueueEntry, ...] = ()
    max_queue_index: I64 = 0
    min_queue_index: I64 = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HAConnection(JsonBody):
    """A slave: how far it is, and how far it is behind, in bytes."""

    NAME = "HAConnectionRuntimeInfo"

    addr: str
    slave_ack_offset: I64 = 0
    diff: I64 = 0
    in_sync: bool = False
    transferred_byte_in_second: I64 = 0
    transfer_from_where: I64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HARuntimeInfo(JsonBody):
    """The copies of a broker (5.x). ``in_sync_slave_nums`` are slaves that have everything."""

    master: bool
    master_commit_log_max_offset: I64 = 0
    in_sync_slave_nums: I32 = 0
    ha_connection_info: tuple[HAConnection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigList(JsonBody):
    """Topics to create or change (5.x)."""

    NAME = "CreateTopicListRequestBody"

    topic_config_list: tuple[TopicConfigBody, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupList(JsonBody):
    """Groups to create or change (5.x)."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAccessConfig(JsonBody):
    """An account (4.x)."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AclConfig(JsonBody):
    """The accounts of a broker (4.x), and the addresses that need none."""

    global_white_addrs: tuple[str, ...] = ()
    plain_access_configs: tuple[PlainAccessConfig, ...] = ()
