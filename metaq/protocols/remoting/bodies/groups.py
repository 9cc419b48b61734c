"""Bodies about groups: heartbeats of clients, and a broker's view of its groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.bodies.registration import DataVersion
from metaq.protocols.remoting.wire_types import I32, I64, Wire


class ConsumeType(Enum):
    """What pulls: the application (a pull consumer), the client library (a push consumer), or pop."""

    CONSUME_ACTIVELY = "PULL"
    CONSUME_PASSIVELY = "PUSH"
    CONSUME_POP = "POP"


class MessageModel(Enum):
    """Whether each member gets all messages, or the members share them. The last one is of 5.5."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"
    LITE_SELECTIVE = "LITE_SELECTIVE"


class ConsumeFromWhere(Enum):
    """Where a group without offsets begins. C++ sends the ordinal, which counts three old names."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData(JsonBody):
    """A group's filter of a topic: ``sub_string`` is ``*``, tags separated by ``||``, or SQL."""

    topic: str
    sub_string: str = "*"
    tags_set: tuple[str, ...] = ()
    code_set: tuple[I32, ...] = ()
    sub_version: I64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerData(JsonBody):
    """A group of producers."""

    group_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerData(JsonBody):
    """A group of consumers, as one of its members sees it."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatData(JsonBody):
    """The groups of a client. The last two fields exist since 5.x."""

    client_id: Annotated[str, Wire("clientID")]
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: I32 | None = None
    without_sub: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckClientRequestBody(JsonBody):
    """A subscription to compile."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerList(JsonBody):
    """The ids of a group's members."""

    consumer_id_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQueue(JsonBody):
    """One queue."""

    topic: str
    broker_name: str
    queue_id: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchRequestBody(JsonBody):
    """The queues that a member wants to lock or unlock."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchResponseBody(JsonBody):
    """The queues that the member has locked now."""

    locked: Annotated[tuple[MessageQueue, ...], Wire("lockOKMQSet")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection(JsonBody):
    """One client of a group."""

    client_id: str
    client_addr: str
    language: str = "JAVA"
    version: I32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConnection(JsonBody):
    """The clients and subscriptions of a group of consumers."""

    connection_set: tuple[ClientConnection, ...] = ()
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConnection(JsonBody):
    """The clients of a group of producers."""

    connection_set: tuple[ClientConnection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig(JsonBody):
    """The settings of a group; the defaults apply to a group that a broker creates automatically."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: I32 = 1
    retry_max_times: I32 = 16
    broker_id: I64 = 0
    which_broker_when_consume_slowly: I64 = 1
    notify_consumer_ids_changed_enable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroups(JsonBody):
    """The groups of a broker by name."""

    NAME = "SubscriptionGroupWrapper"

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList(JsonBody):
    """Names of groups."""

    group_list: tuple[str, ...] = ()
