"""Every key of server.ini: its name, how its value is read, its default, and what an error says is allowed.

The tables are the single place that knows key names. ``REQUIRED`` keys must be given and not blank, as in MetaQ; all
others have MetaQ's default, except ``hostName`` (see docs/configuration.md).

Source: docs/configuration.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metaq.model import BROKER_ID_MAX, INT32_MAX, INT32_MIN
from metaq_broker.operate.config.ini import ConfigError, Section
from metaq_broker.operate.config.values import (
    Reader,
    boolean,
    byte_count,
    delete_policy,
    file_path,
    host,
    names,
    number,
    one_of,
    plain,
    schedule,
    zookeeper_hosts,
    zookeeper_path,
)

REQUIRED: Final = object()
"""Default of a key that must be given."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its ``name`` in the file, the ``attribute`` of the parsed section, its reader and its default."""

    name: str
    attribute: str
    read: Reader
    default: Any = REQUIRED


_COUNT = number(0, INT32_MAX)
_MILLISECONDS = number(1, INT32_MAX)
_BODY_BYTES = byte_count(1, GIB)
_DISK_BYTES = byte_count(0, 1 << 62)

CLIENT_AUTH: Final = ("none", "optional", "required")
"""Values of ``tlsClientAuth``: whether clients show a certificate."""

METAQ_SYSTEM_KEYS: Final = (
    Key("brokerId", "broker_id", number(0, BROKER_ID_MAX)),
    Key("numPartitions", "num_partitions", number(1, 100_000)),
    Key("serverPort", "server_port", number(0, 65535), 8123),
    Key("dashboardHttpPort", "dashboard_http_port", number(0, 65535), 8120),
    Key("hostName", "host_name", host, "127.0.0.1"),
    Key("dataPath", "data_path", plain, str(Path.home() / "meta")),
    Key("dataLogPath", "data_log_path", plain, ""),
    Key("appClassPath", "app_class_path", plain, ""),
    Key("unflushThreshold", "unflush_threshold", number(INT32_MIN, INT32_MAX)),
    Key("unflushInterval", "unflush_interval_ms", _MILLISECONDS),
    Key("maxSegmentSize", "segment_bytes_max", byte_count(1, INT32_MAX)),
    Key("maxTransferSize", "transfer_bytes_max", byte_count(20, INT32_MAX)),
    Key("getProcessThreadCount", "get_process_thread_count", number(1, INT32_MAX), 1),
    Key("putProcessThreadCount", "put_process_thread_count", number(1, INT32_MAX), 1),
    Key("deletePolicy", "delete_policy", delete_policy, "delete,168"),
    Key("deleteWhen", "delete_when", schedule, "0 0 6,18 * * ?"),
    Key("quartzThreadCount", "quartz_thread_count", number(1, INT32_MAX), 5),
    Key("maxCheckpoints", "checkpoints_max", number(1, INT32_MAX), 3),
    Key("checkpointInterval", "checkpoint_interval_ms", _MILLISECONDS, 3_600_000),
    Key("maxTxTimeoutTimerCapacity", "transaction_timers_max", number(1, INT32_MAX), 30_000),
    Key("maxTxTimeoutInSeconds", "transaction_timeout_s_max", number(1, INT32_MAX), 60),
    Key("flushTxLogAtCommit", "transaction_flush", number(0, 2), 1),
    Key("acceptPublish", "accept_publish", boolean, True),
    Key("acceptSubscribe", "accept_subscribe", boolean, True),
    Key("stat", "stat", boolean, False),
    Key("updateConsumerOffsets", "update_consumer_offsets", boolean, False),
    Key("loadMessageStoresInParallel", "load_message_stores_in_parallel", boolean, False),
)
"""The keys of ``[system]`` that MetaQ 1.4 knows; it refuses a file with any other."""

SYSTEM_KEYS: Final = (
    *METAQ_SYSTEM_KEYS,
    Key("bindAddress", "bind_address", host, "127.0.0.1"),
    Key("maxMessageSize", "message_bytes_max", _BODY_BYTES, 4 * MIB),
    Key("maxBatchSize", "batch_bytes_max", _BODY_BYTES, 8 * MIB),
    Key("maxLineLength", "line_bytes_max", byte_count(64, 16 * MIB), 65_536),
    Key("maxConnections", "connections_max", number(1, 1_000_000), 10_000),
    Key("maxPipelinedRequests", "pipelined_requests_max", number(1, 10_000_000), 10_000),
    Key("maxOutputBuffer", "output_bytes_max", byte_count(4 * KIB, GIB), 8 * MIB),
    Key("maxBufferedBytes", "buffered_bytes_max", byte_count(MIB, 1 << 40), 256 * MIB),
    Key("maxPartitions", "partitions_max", number(1, 10_000_000), 10_000),
    Key("idleTimeout", "idle_timeout_ms", number(100, INT32_MAX), 300_000),
    Key("indexInterval", "index_interval_bytes", byte_count(32, GIB), 4096),
    Key("verifyAtStart", "verify_at_start", one_of("tail", "full"), "tail"),
    Key("diskFreeMinBytes", "disk_free_bytes_min", _DISK_BYTES, None),
    Key("diskFreeResumeBytes", "disk_free_bytes_resume", _DISK_BYTES, None),
    Key("diskCheckInterval", "disk_check_interval_ms", number(10, INT32_MAX), 1000),
    Key("localReads", "local_reads", boolean, True),
    Key("metricsPort", "metrics_port", number(0, 65535), 0),
    Key("tlsCertFile", "tls_cert_file", file_path, ""),
    Key("tlsKeyFile", "tls_key_file", file_path, ""),
    Key("tlsClientCaFile", "tls_client_ca_file", file_path, ""),
    Key("tlsClientAuth", "tls_client_auth", one_of(*CLIENT_AUTH), ""),
    Key("tlsHandshakeTimeout", "tls_handshake_timeout_ms", _MILLISECONDS, 10_000),
    Key("allowPublish", "allow_publish", names, ()),
    Key("allowSubscribe", "allow_subscribe", names, ()),
)

ZOOKEEPER_KEYS: Final = (
    Key("zk.zkConnect", "connect", zookeeper_hosts, ""),
    Key("zk.zkSessionTimeoutMs", "session_timeout_ms", _MILLISECONDS, 30_000),
    Key("zk.zkConnectionTimeoutMs", "connection_timeout_ms", _MILLISECONDS, 30_000),
    Key("zk.zkSyncTimeMs", "sync_time_ms", _COUNT, 5_000),
    Key("zk.zkEnable", "enable", boolean, True),
    Key("zk.zkRoot", "root", zookeeper_path, "/meta"),
)

TOPIC_ATTRIBUTES: Final = (
    "num_partitions",
    "stat",
    "delete_policy",
    "delete_when",
    "data_path",
    "unflush_interval_ms",
    "unflush_threshold",
    "accept_publish",
    "accept_subscribe",
    "allow_publish",
    "allow_subscribe",
)
TOPIC_KEYS: Final = tuple(key for key in SYSTEM_KEYS if key.attribute in TOPIC_ATTRIBUTES)
METAQ_TOPIC_KEYS: Final = tuple(key for key in METAQ_SYSTEM_KEYS if key.attribute in TOPIC_ATTRIBUTES)

_GONE: Final = {
    "diamondZKDataId": "diamond is not supported; remove this key and write zk.zkConnect=HOST:PORT,... in [zookeeper]",
    "diamondZKGroup": "diamond is not supported; remove this key and write zk.zkConnect=HOST:PORT,... in [zookeeper]",
}
FILTER_PREFIX: Final = "group."
_IGNORED: Final = {"localWrites": "clients send their blocks, so it is not needed any more; remove it"}


def ignored_keys(section: Section) -> dict[str, str]:
    """Return the keys of a section that are known and have no effect, with the reason."""
    found = {name: _IGNORED[name] for name in section.values if name in _IGNORED}
    for name in section.values:
        if name.startswith(FILTER_PREFIX) and section.name.startswith("topic"):
            found[name] = "filters that are Java classes do not run here; readers of this group get all messages"
    return found


def read_section(
    section: Section, keys: Iterable[Key], source: str, inherited: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return attribute -> value for every key; a missing or blank one gets ``inherited``'s value, else its default.

    Raises:
        ConfigError: An unknown key (the nearest valid one is named), a wrong value, or a required key that is missing.
    """
    table = {key.name: key for key in keys}
    ignored = ignored_keys(section)
    for name in section.values:
        if name not in table and name not in ignored:
            raise ConfigError(_where(source, section, name), _unknown(name, table))
    return {key.attribute: _value(section, key, source, inherited) for key in table.values()}


def _value(section: Section, key: Key, source: str, inherited: Mapping[str, Any] | None) -> Any:
    text = section.values.get(key.name, "")
    if text:
        try:
            return key.read(text)
        except ValueError as allowed:
            raise ConfigError(_where(source, section, key.name), f"value {text!r}; allowed is {allowed}") from None
    if inherited is not None:
        return inherited[key.attribute]
    if key.default is REQUIRED:
        raise ConfigError(_where(source, section, key.name), "is required and has no value")
    return key.default


def _unknown(name: str, table: Mapping[str, Key]) -> str:
    if name in _GONE:
        return _GONE[name]
    nearest = {key.lower(): key for key in table}
    match = difflib.get_close_matches(name.lower(), nearest, n=1, cutoff=0.0)
    return f"unknown key; the nearest valid key is {nearest[match[0]]}"


def _where(source: str, section: Section, key: str) -> str:
    return f"{source} [{section.name}] {key}"
