"""The ``[rocketmq]`` section: the front end for RocketMQ's clients. Keys have RocketMQ's names where it has them.

Source: docs/configuration.md, "[rocketmq]".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq.model import INT32_MAX, Address
from metaq_broker.operate.config.ini import ConfigError, Section
from metaq_broker.operate.config.keys import GIB, KIB, MIB, Key, read_section
from metaq_broker.operate.config.values import Reader, boolean, byte_count, file_path, number, one_of

SECTION: Final = "rocketmq"
DEFAULT_PORT: Final = 10911
VIP_PORT_BELOW: Final = 2
"""How far below the port clients before 4.5 expect a second one."""

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
NAME_CHARACTERS_MAX: Final = 127

_NAME: Final = re.compile(r"[a-zA-Z0-9_%|.-]+")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class RocketmqConfig:
    """One field for each key of ``ROCKETMQ_KEYS``, units last.

    ``ip`` is empty where the broker is known by ``hostName``. ``accounts_file`` is empty without accounts.
    """

    enabled: bool
    port: int
    old_clients_port: bool
    broker_name: str
    cluster_name: str
    ip: str
    name_servers: tuple[Address, ...]
    registration_interval_ms: int
    auto_create_topics: bool
    auto_create_groups: bool
    default_queues: int
    message_bytes_max: int
    wait_for_disk: bool
    index_keys: bool
    has_conditions: bool
    delay_levels_s: tuple[int, ...]
    transaction_timeout_ms: int
    transaction_check_interval_ms: int
    transaction_check_max: int
    pull_messages_max: int
    pull_bytes_max: int
    held_pulls_max: int
    held_pulls_per_connection_max: int
    long_polling: bool
    groups_max: int
    members_max: int
    groups_of_client_max: int
    subscriptions_of_group_max: int
    expression_bytes_max: int
    expressions_bytes_max: int
    queues_of_group_max: int
    locks_max: int
    accounts: bool
    accounts_file: str
    metaq_accounts: bool
    tls_mode: str
    idle_timeout_s: int
    connections_max: int
    pipelined_requests_max: int
    requests_max: int
    frame_bytes_max: int
    output_bytes_max: int
    buffered_bytes_max: int
    tls_handshake_timeout_ms: int

    @property
    def idle_timeout_ms(self) -> int:
        """The idle timeout, as connections want it."""
        return self.idle_timeout_s * 1000


def _name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > NAME_CHARACTERS_MAX:
        raise ValueError(f"1 to {NAME_CHARACTERS_MAX} letters, digits and % | . _ -")
    return text


def _ip(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        raise ValueError("an IP address, of version 4 or 6") from None


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
_QUEUES: Final[Reader] = number(1, 1024)

ROCKETMQ_KEYS: Final = (
    Key("enabled", "enabled", boolean, False),
    Key("port", "port", number(0, 65535), DEFAULT_PORT),
    Key("vipPort", "old_clients_port", boolean, True),
    Key("brokerName", "broker_name", _name, "metaq"),
    Key("clusterName", "cluster_name", _name, "DefaultCluster"),
    Key("brokerIP1", "ip", _ip, ""),
    Key("namesrvAddr", "name_servers", _addresses, ()),
    Key("registerNameServerPeriod", "registration_interval_ms", number(1000, 60_000), 30_000),
    Key("autoCreateTopicEnable", "auto_create_topics", boolean, True),
    Key("autoCreateSubscriptionGroup", "auto_create_groups", boolean, True),
    Key("defaultTopicQueueNums", "default_queues", _QUEUES, 8),
    Key("maxMessageSize", "message_bytes_max", byte_count(1, 64 * MIB), 4 * MIB),
    Key("flushDiskType", "wait_for_disk", _flush, True),
    Key("messageIndexEnable", "index_keys", boolean, True),
    Key("enablePropertyFilter", "has_conditions", boolean, True),
    Key("messageDelayLevel", "delay_levels_s", _delay_levels, _delay_levels(DELAY_LEVELS)),
    Key("transactionTimeOut", "transaction_timeout_ms", _COUNT, 6000),
    Key("transactionCheckInterval", "transaction_check_interval_ms", _COUNT, 60_000),
    Key("transactionCheckMax", "transaction_check_max", _COUNT, 15),
    Key("maxTransferCountOnMessageInMemory", "pull_messages_max", number(1, 10_000), 32),
    Key("maxTransferBytesOnMessageInMemory", "pull_bytes_max", byte_count(KIB, 8 * MIB), 256 * KIB),
    Key("maxWaitingPulls", "held_pulls_max", number(1, 10_000_000), 200_000),
    Key("maxWaitingPullsPerConnection", "held_pulls_per_connection_max", number(1, 1_000_000), 4096),
    Key("longPollingEnable", "long_polling", boolean, True),
    Key("maxGroups", "groups_max", _COUNT, 10_000),
    Key("maxMembers", "members_max", _COUNT, 100_000),
    Key("maxGroupsPerClient", "groups_of_client_max", _COUNT, 256),
    Key("maxSubscriptionsPerGroup", "subscriptions_of_group_max", _COUNT, 1_000),
    Key("maxSubscriptionBytes", "expression_bytes_max", byte_count(KIB, MIB), 16 * KIB),
    Key("maxSubscriptionsBytes", "expressions_bytes_max", byte_count(MIB, 1 << 40), 64 * MIB),
    Key("maxQueuesPerGroup", "queues_of_group_max", _COUNT, 65_536),
    Key("maxLocks", "locks_max", _COUNT, 200_000),
    Key("aclEnable", "accounts", boolean, False),
    Key("aclFile", "accounts_file", file_path, ""),
    Key("aclMetaqPort", "metaq_accounts", boolean, False),
    Key("tls.server.mode", "tls_mode", one_of("disabled", "permissive", "enforcing"), "permissive"),
    Key("serverChannelMaxIdleTimeSeconds", "idle_timeout_s", number(1, 1_000_000), 120),
    Key("maxConnections", "connections_max", number(1, 1_000_000), 10_000),
    Key("maxPipelinedRequests", "pipelined_requests_max", number(1, 1_000_000), 8192),
    Key("maxRequests", "requests_max", number(1, 100_000_000), 400_000),
    Key("maxFrameBytes", "frame_bytes_max", byte_count(64 * KIB, GIB), 16 * MIB),
    Key("maxOutputBytes", "output_bytes_max", byte_count(4 * KIB, GIB), 8 * MIB),
    Key("maxBufferedBytes", "buffered_bytes_max", byte_count(MIB, 1 << 40), 256 * MIB),
    Key("tls.server.handshakeTimeoutMillis", "tls_handshake_timeout_ms", number(100, 600_000), 10_000),
)
"""All keys. Those with ``max`` that are not RocketMQ's, ``enabled`` and ``vipPort`` are this broker's own."""


def read_rocketmq(sections: Mapping[str, Section], source: str) -> RocketmqConfig | None:
    """Return what the section says; ``None`` if there is none, or it does not switch the front end on.

    Raises:
        ConfigError: An unknown key, a wrong value, or values that do not go together.
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
        raise ConfigError(f"{where} maxFrameBytes", f"value {config.frame_bytes_max}; allowed is {allowed}")
    if config.buffered_bytes_max < config.frame_bytes_max:
        allowed = f"at least maxFrameBytes ({config.frame_bytes_max})"
        raise ConfigError(f"{where} maxBufferedBytes", f"value {config.buffered_bytes_max}; allowed is {allowed}")
    if config.pipelined_requests_max <= config.held_pulls_per_connection_max:
        allowed = f"more than maxWaitingPullsPerConnection ({config.held_pulls_per_connection_max})"
        raise ConfigError(
            f"{where} maxPipelinedRequests", f"value {config.pipelined_requests_max}; allowed is {allowed}"
        )
    if config.accounts and not config.accounts_file:
        raise ConfigError(f"{where} aclFile", "is required with aclEnable and has no value")
    if config.metaq_accounts and not config.accounts:
        raise ConfigError(f"{where} aclMetaqPort", "has no effect without aclEnable=true; set that as well")
    if not config.delay_levels_s:
        raise ConfigError(f"{where} messageDelayLevel", "at least one level is needed")
