"""The ``[rocketmq]`` section: the front end for RocketMQ's clients. Keys have RocketMQ's names where it has them.

Source: docs/configuration.md, "[rocketmq]".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq import ports
from metaq.formats.topic_names import rocketmq_fault
from metaq.model import INT32_MAX, Address
from metaq_broker.operate.config.ini import ConfigError, Section
from metaq_broker.operate.config.keys import GIB, KIB, MIB, OUR_OWN, key, keys_of, read_section
from metaq_broker.operate.config.values import Reader, boolean, byte_count, file_path, number, one_of

SECTION: Final = "rocketmq"
VIP_PORT_BELOW: Final = 2
"""Clients before 4.5 expect a second port this far below the port."""

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
NAME_CHARACTERS_MAX: Final = 127

HOST_CHARACTERS_MAX: Final = 253

_HOST: Final = re.compile(r"(?:[a-zA-Z0-9_-]+\.)*(?![0-9]+\.?$)[a-zA-Z0-9_-]+\.?")
_NAME: Final = re.compile(r"[a-zA-Z0-9_%|.-]+")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > NAME_CHARACTERS_MAX:
        raise ValueError(f"1 to {NAME_CHARACTERS_MAX} letters, digits and % | . _ -")
    return text


def _topic(text: str) -> str:
    fault = rocketmq_fault(text)
    if fault is not None:
        raise ValueError(f"the name of a topic: {fault}")
    return text


def _host(text: str) -> str:
    """Read an IP address or the name of a host; the last part of a name is not a number."""
    try:
        return str(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        if len(text) > HOST_CHARACTERS_MAX or not _HOST.fullmatch(text):
            raise ValueError("an IP address, or the name of a host, without a port") from None
    return text


def _addresses(text: str) -> tuple[Address, ...]:
    try:
        return tuple(Address.parse(each.strip()) for each in text.split(";") if each.strip())
    except ValueError:
        raise ValueError("HOST:PORT, several with ; between them") from None


def _delay_levels(text: str) -> tuple[int, ...]:
    levels = text.split()
    if not all(re.fullmatch(r"[0-9]{1,9}[smhd]", each) for each in levels):
        raise ValueError("delays such as 1s 5m 2h, with blanks between them")
    return tuple(int(each[:-1]) * _UNIT_S[each[-1]] for each in levels)


def _flush(text: str) -> bool:
    return bool(one_of("SYNC_FLUSH", "ASYNC_FLUSH")(text) == "SYNC_FLUSH")


_COUNT: Final[Reader] = number(1, INT32_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketmqConfig:
    """The section.

    ``advertised_host`` is empty if clients get ``hostName``; ``accounts_file`` is empty without accounts.
    """

    # fmt: off
    enabled: bool = key("enabled", boolean, "whether RocketMQ's clients are served", False, kind=OUR_OWN)
    port: int = key("port", number(0, 65535), "where", ports.ROCKETMQ)
    old_clients_port: bool = key(
        "vipPort", boolean,
        f"whether clients are served two below `port`, too ({ports.ROCKETMQ - VIP_PORT_BELOW}), by which Java clients "
        "before 4.5 send and lock. If that port cannot be had, the broker starts without it and the log says so. "
        "Brokers on one machine need ports that are not two apart", True, kind=OUR_OWN,
    )
    broker_name: str = key("brokerName", _name, "what routes say", "metaq")
    cluster_name: str = key("clusterName", _name, "what routes say", "DefaultCluster")
    advertised_host: str = key(
        "brokerIP1", _host,
        "the address or the name that routes give clients, as it is written here. Ids of messages have the IP address "
        "of the name", "", shown="`hostName`",
    )
    name_servers: tuple[Address, ...] = key(
        "namesrvAddr", _addresses, "name servers to register at, `HOST:PORT` with `;` between them", (), shown="none",
    )
    registration_interval_ms: int = key(
        "registerNameServerPeriod", number(1000, 60_000),
        "how often, in milliseconds; sooner after a registration that failed, or a connection that ended", 30_000,
    )
    auto_create_topics: bool = key("autoCreateTopicEnable", boolean, "whether a send makes its topic", True)
    default_queues: int = key(
        "defaultTopicQueueNums", number(1, 1024), "queues of a topic that a send makes, at most", 8,
    )
    has_trace_topic: bool = key(
        "traceTopicEnable", boolean,
        "whether the topic exists to which clients send their traces (`enableMsgTrace`), with one queue, also where "
        "a send makes no topic", True, shown="true; RocketMQ: false",
    )
    trace_topic: str = key("msgTraceTopicName", _topic, "the name of that topic", "RMQ_SYS_TRACE_TOPIC")
    auto_create_groups: bool = key("autoCreateSubscriptionGroup", boolean, "whether a consumer makes its group", True)
    wait_for_disk: bool = key(
        "flushDiskType", _flush,
        "`SYNC_FLUSH`: a send is answered when it is on the disk. `ASYNC_FLUSH`: before that, as RocketMQ does by "
        "default; it is on the disk within about 20 ms, and at once where a consumer waits for it. A message is "
        "delivered when it is on the disk. This is for topics that clients made; topics of `server.ini` have their "
        "own `unflushThreshold`. Messages that wait are always on the disk first", True, shown="`SYNC_FLUSH`",
    )
    message_bytes_max: int = key(
        "maxMessageSize", byte_count(1, 64 * MIB),
        "a larger body, or batch, is refused (13). It may be more than MetaQ's in `[system]`. RocketMQ's Java clients "
        "have a limit of their own, `setMaxMessageSize`", 4 * MIB,
    )
    pull_messages_max: int = key(
        "maxTransferCountOnMessageInMemory", number(1, 10_000), "most messages that a pull is given", 32,
    )
    pull_bytes_max: int = key(
        "maxTransferBytesOnMessageInMemory", byte_count(KIB, 8 * MIB), "most bytes that a pull is given", 256 * KIB,
    )
    delay_levels_s: tuple[int, ...] = key(
        "messageDelayLevel", _delay_levels, "the delays", _delay_levels(DELAY_LEVELS), shown="RocketMQ's 18",
    )
    transaction_timeout_ms: int = key(
        "transactionTimeOut", _COUNT, "age in ms at which a producer is asked about a half message", 6000,
    )
    transaction_check_interval_ms: int = key(
        "transactionCheckInterval", _COUNT, "ms until it is asked again", 60_000,
    )
    transaction_check_max: int = key("transactionCheckMax", _COUNT, "how often it is asked", 15)
    index_keys: bool = key(
        "messageIndexEnable", boolean, "whether messages can be found by key ([lookups](#lookups))", True,
    )
    has_conditions: bool = key(
        "enablePropertyFilter", boolean,
        "whether subscriptions may pick messages by a [condition](#conditions) over properties, SQL92", True,
        shown="true; RocketMQ: false",
    )
    long_polling: bool = key("longPollingEnable", boolean, "whether a pull that finds nothing may wait", True)
    keeps_replies: bool = key(
        "storeReplyMessageEnable", boolean,
        "whether [replies to requests](#requests-and-replies) are stored, too, in `CLUSTER_REPLY_TOPIC`", True,
    )
    accounts: bool = key("aclEnable", boolean, "whether clients need [accounts](#access)", False)
    accounts_file: str = key("aclFile", file_path, "the file of the accounts", "", kind=OUR_OWN)
    metaq_accounts: bool = key(
        "aclMetaqPort", boolean, "whether MetaQ's clients need accounts, too", False, kind=OUR_OWN,
    )
    tls_mode: str = key(
        "tls.server.mode", one_of("disabled", "permissive", "enforcing"),
        "`disabled`, `permissive` or `enforcing`; certificate and key are those of MetaQ's port", "permissive",
    )
    tls_handshake_timeout_ms: int = key(
        "tls.server.handshakeTimeoutMillis", number(100, 600_000), "ms for a client's handshake", 10_000,
    )
    idle_timeout_s: int = key(
        "serverChannelMaxIdleTimeSeconds", number(1, 1_000_000), "seconds after which an idle connection is closed",
        120,
    )
    connections_max: int = key(
        "maxConnections", number(1, 1_000_000), "connections; further ones are closed at once", 10_000, kind=OUR_OWN,
    )
    held_pulls_max: int = key(
        "maxWaitingPulls", number(1, 10_000_000),
        "pulls that wait, of all connections; one with many tags or a long condition counts for several",
        200_000, kind=OUR_OWN,
    )
    held_pulls_per_connection_max: int = key(
        "maxWaitingPullsPerConnection", number(1, 1_000_000), "pulls that wait, of one connection", 4096, kind=OUR_OWN,
    )
    pipelined_requests_max: int = key(
        "maxPipelinedRequests", number(1, 1_000_000), "unanswered requests of one connection", 8192, kind=OUR_OWN,
    )
    requests_max: int = key(
        "maxRequests", number(1, 100_000_000), "unanswered requests of all connections", 400_000, kind=OUR_OWN,
    )
    frame_bytes_max: int = key(
        "maxFrameBytes", byte_count(64 * KIB, GIB), "longest request", 16 * MIB, kind=OUR_OWN,
    )
    output_bytes_max: int = key(
        "maxOutputBytes", byte_count(4 * KIB, GIB), "bytes of answers that wait for one client", 8 * MIB, kind=OUR_OWN,
    )
    buffered_bytes_max: int = key(
        "maxBufferedBytes", byte_count(MIB, 1 << 40), "bytes that all connections together hold", 256 * MIB,
        kind=OUR_OWN,
    )
    groups_max: int = key("maxGroups", _COUNT, "groups with settings", 10_000, kind=OUR_OWN)
    members_max: int = key("maxMembers", _COUNT, "memberships of clients in groups", 100_000, kind=OUR_OWN)
    groups_of_client_max: int = key("maxGroupsPerClient", _COUNT, "groups of one connection", 256, kind=OUR_OWN)
    subscriptions_of_group_max: int = key(
        "maxSubscriptionsPerGroup", _COUNT, "topics that a group reads", 1_000, kind=OUR_OWN,
    )
    expression_bytes_max: int = key(
        "maxSubscriptionBytes", byte_count(KIB, MIB), "bytes of one subscription's expression", 16 * KIB, kind=OUR_OWN,
    )
    expressions_bytes_max: int = key(
        "maxSubscriptionsBytes", byte_count(MIB, 1 << 40), "bytes of all subscriptions' expressions", 64 * MIB,
        kind=OUR_OWN,
    )
    queues_of_group_max: int = key(
        "maxQueuesPerGroup", _COUNT, "queues for which one group has offsets or locks", 65_536, kind=OUR_OWN,
    )
    locks_max: int = key("maxLocks", _COUNT, "locks of queues", 200_000, kind=OUR_OWN)
    # fmt: on

    @property
    def idle_timeout_ms(self) -> int:
        return self.idle_timeout_s * 1000


ROCKETMQ_KEYS: Final = keys_of(RocketmqConfig)


def read_rocketmq(sections: Mapping[str, Section], source: str) -> RocketmqConfig | None:
    """Return the section; ``None`` if there is none, or it does not enable the front end.

    Raises:
        ConfigError: An unknown key, a wrong value, or values that contradict each other.
    """
    section = sections.get(SECTION)
    if section is None:
        return None
    values: dict[str, Any] = read_section(section, ROCKETMQ_KEYS, source)
    config = RocketmqConfig(**values)
    _check(config, f"{source} [{SECTION}]")
    return config if config.enabled else None


def _check(config: RocketmqConfig, where: str) -> None:
    if config.frame_bytes_max < config.message_bytes_max + MIB:
        allowed = f"at least a MiB more than maxMessageSize ({config.message_bytes_max})"
        raise ConfigError(f"{where} maxFrameBytes", f"value {config.frame_bytes_max}; expected {allowed}")
    if config.buffered_bytes_max < config.frame_bytes_max:
        allowed = f"at least maxFrameBytes ({config.frame_bytes_max})"
        raise ConfigError(f"{where} maxBufferedBytes", f"value {config.buffered_bytes_max}; expected {allowed}")
    if config.pipelined_requests_max <= config.held_pulls_per_connection_max:
        allowed = f"more than maxWaitingPullsPerConnection ({config.held_pulls_per_connection_max})"
        raise ConfigError(
            f"{where} maxPipelinedRequests", f"value {config.pipelined_requests_max}; expected {allowed}"
        )
    if config.accounts and not config.accounts_file:
        raise ConfigError(f"{where} aclFile", "is required with aclEnable and has no value")
    if config.metaq_accounts and not config.accounts:
        raise ConfigError(f"{where} aclMetaqPort", "has no effect without aclEnable=true; set that as well")
    if not config.delay_levels_s:
        raise ConfigError(f"{where} messageDelayLevel", "at least one level is needed")
