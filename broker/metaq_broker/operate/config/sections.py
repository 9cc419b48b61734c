"""The sections of server.ini that MetaQ has: one field for each key, which is its row (``keys.key``).

Source: docs/configuration.md, which is made from the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq import ports
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.model import BROKER_ID_MAX, INT32_MAX, INT32_MIN
from metaq_broker.log.partitions.loading import Verify
from metaq_broker.operate.config.keys import GIB, KIB, MIB, OUR_OWN, WITHOUT_EFFECT, key, keys_of
from metaq_broker.operate.config.values import (
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

_COUNT: Final = number(1, INT32_MAX)
_MILLISECONDS: Final = number(1, INT32_MAX)
_PORT: Final = number(0, 65535)
_BODY_BYTES: Final = byte_count(1, GIB)
_DISK_BYTES: Final = byte_count(0, 1 << 62)

_RIGHTS: Final = (
    "names of certificates that may {}, with commas between them; `*` = everyone. See "
    "[Who may do what](operations.md#who-may-do-what)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Settings of one topic. ``unflush_threshold`` <= 0 means group commit; ``data_path`` is absolute.

    ``allow_publish`` and ``allow_subscribe`` are names in certificates; an empty list allows everyone.
    """

    # fmt: off
    num_partitions: int = key(
        "numPartitions", number(1, 100_000), "partitions of a topic", 1, sample="4",
    )
    data_path: str = key(
        "dataPath", plain, "folder of the partitions", str(Path.home() / "meta"), shown="`~/meta`", sample="@DATA@",
    )
    unflush_threshold: int = key(
        "unflushThreshold", number(INT32_MIN, INT32_MAX),
        "0 or less: a put is answered when it is on the disk (group commit). N: it is answered when it is written, and "
        "synced once more than N messages are not on the disk, or after `unflushInterval`. "
        "See [What an acknowledgement means](operations.md#what-an-acknowledgement-means)", 0,
        sample="0",
    )
    unflush_interval_ms: int = key(
        "unflushInterval", _MILLISECONDS,
        "ms after which what is not on the disk is written there, with a threshold above 0", 10_000,
        sample="1000",
    )
    delete_policy: str = key(
        "deletePolicy", delete_policy,
        "`delete,TIME` or `archive,TIME[,true]`; TIME in hours, or with `s`, `m`, `h`. See "
        "[Old segments](operations.md#old-segments)", "delete,168",
    )
    delete_when: str = key(
        "deleteWhen", schedule, "when old segments are removed; Quartz schedule", "0 0 6,18 * * ?",
    )
    stat: bool = key("stat", boolean, "figures per topic in `stats TOPIC`", False)
    accept_publish: bool = key("acceptPublish", boolean, "shown by `stats`; not enforced, as in MetaQ", True)
    accept_subscribe: bool = key("acceptSubscribe", boolean, "shown by `stats`; not enforced, as in MetaQ", True)
    allow_publish: tuple[str, ...] = key(
        "allowPublish", names, _RIGHTS.format("write"), (), shown="everyone", kind=OUR_OWN,
    )
    allow_subscribe: tuple[str, ...] = key(
        "allowSubscribe", names, _RIGHTS.format("read"), (), shown="everyone", kind=OUR_OWN,
    )
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig(TopicConfig):
    """The ``[system]`` section. Its topic settings apply to topics that do not set them."""

    # fmt: off
    broker_id: int = key(
        "brokerId", number(0, BROKER_ID_MAX),
        "0..1023, unique in a cluster; part of every message id. Never change it for a folder that has messages",
        sample="0",
    )
    server_port: int = key("serverPort", _PORT, "0 = any free port", ports.METAQ, sample=str(ports.METAQ))
    host_name: str = key(
        "hostName", host,
        "the name or address by which clients reach the broker, also in ZooKeeper; appears in error texts. Blank "
        "(`hostName=`): the first address of the machine that is not loopback, as in MetaQ where the key is missing; "
        "the log says which. By default no other machine reaches the broker, which may have neither accounts nor TLS",
        "127.0.0.1", sample="127.0.0.1",
    )
    bind_address: str = key(
        "bindAddress", host,
        "address to listen on; `0.0.0.0` = all interfaces. Without TLS, any address other than loopback causes a "
        "warning at start", "127.0.0.1", kind=OUR_OWN,
    )
    metrics_port: int = key(
        "metricsPort", _PORT,
        "port for Prometheus, on `bindAddress`; 0 = none. See [Metrics](administration.md#metrics)", 0, kind=OUR_OWN,
    )
    data_log_path: str = key("dataLogPath", plain, "folder in which `transactions/` is kept", "", shown="= `dataPath`")
    segment_bytes_max: int = key(
        "maxSegmentSize", byte_count(1, INT32_MAX), "size in bytes at which a new segment file is begun",
        GIB, sample="1024*1024*1024",
    )
    transfer_bytes_max: int = key(
        "maxTransferSize", byte_count(20, INT32_MAX),
        "most bytes in the reply to one get. A longer message is fetched with several gets, or with one by a client "
        "that requests that many bytes", MIB, sample="1024*1024",
    )
    disk_free_bytes_min: int | None = key(
        "diskFreeMinBytes", _DISK_BYTES,
        "puts are refused while less is free; 0 = never. See "
        "[When a disk gets full](operations.md#when-a-disk-gets-full)", None,
        shown="268435456, at most a tenth of the disk", kind=OUR_OWN,
    )
    disk_free_bytes_resume: int | None = key(
        "diskFreeResumeBytes", _DISK_BYTES, "puts are accepted again when this much is free", None,
        shown="a quarter more than `diskFreeMinBytes`", kind=OUR_OWN,
    )
    disk_check_interval_ms: int = key(
        "diskCheckInterval", number(10, INT32_MAX),
        "ms between two checks of the free space; a tenth of it when space is scarce", 1000, kind=OUR_OWN,
    )
    verify_at_start: Verify = key(
        "verifyAtStart", one_of("tail", "full"),
        "what is read at start: `tail` = the newest segment of partitions that were not stopped cleanly; `full` = "
        "every message of every segment", "tail", kind=OUR_OWN,
    )
    load_message_stores_in_parallel: bool = key(
        "loadMessageStoresInParallel", boolean,
        "at start, partitions are opened by several threads (number of CPUs plus two); useful after a crash with many "
        "partitions", False,
    )
    index_interval_bytes: int = key(
        "indexInterval", byte_count(32, GIB), "bytes of log between two entries of the index", 4096, kind=OUR_OWN,
    )
    transaction_flush: int = key(
        "flushTxLogAtCommit", number(0, 2),
        "transactions: 0 = left to the operating system, 1 = synced before it is acknowledged, 2 = synced each second",
        1,
    )
    transaction_timers_max: int = key("maxTxTimeoutTimerCapacity", _COUNT, "most unfinished transactions", 30_000)
    transaction_timeout_s_max: int = key("maxTxTimeoutInSeconds", _COUNT, "longest timeout of a transaction", 60)
    checkpoints_max: int = key("maxCheckpoints", _COUNT, "checkpoints of the transaction journal that are kept", 3)
    checkpoint_interval_ms: int = key(
        "checkpointInterval", _MILLISECONDS, "ms between two checkpoints of the transaction journal", 3_600_000,
    )
    message_bytes_max: int = key(
        "maxMessageSize", _BODY_BYTES, "longest message body in bytes", 4 * MIB, kind=OUR_OWN,
    )
    batch_bytes_max: int = key(
        "maxBatchSize", _BODY_BYTES, "longest block of a batched put in bytes, at least `maxMessageSize`", 8 * MIB,
        kind=OUR_OWN,
    )
    line_bytes_max: int = key(
        "maxLineLength", byte_count(64, 16 * MIB), "longest command line in bytes", 65_536, kind=OUR_OWN,
    )
    connections_max: int = key(
        "maxConnections", number(1, 1_000_000),
        "further ones are closed at once. Fewer if the limit of open files, shared with the partitions, does not allow "
        "as many; this is logged at start", 10_000, kind=OUR_OWN,
    )
    pipelined_requests_max: int = key(
        "maxPipelinedRequests", number(1, 10_000_000),
        "unanswered requests of one connection; it is not read from until half of them are answered", 10_000,
        kind=OUR_OWN,
    )
    output_bytes_max: int = key(
        "maxOutputBuffer", byte_count(4 * KIB, GIB),
        "bytes of replies that wait for one client; beyond it the connection is not read from", 8 * MIB, kind=OUR_OWN,
    )
    buffered_bytes_max: int = key(
        "maxBufferedBytes", byte_count(MIB, 1 << 40),
        "bytes of unfinished requests and unread replies of all connections together, at least `maxBatchSize`; beyond "
        "it, the connections that use most are closed", 256 * MIB, kind=OUR_OWN,
    )
    partitions_max: int = key(
        "maxPartitions", number(1, 10_000_000), "partitions of the broker; further ones are not made", 10_000,
        kind=OUR_OWN,
    )
    idle_timeout_ms: int = key(
        "idleTimeout", number(100, INT32_MAX), "ms without a request after which a connection is closed", 300_000,
        kind=OUR_OWN,
    )
    update_consumer_offsets: bool = key(
        "updateConsumerOffsets", boolean,
        "a get beyond the end is answered with 301 and the end instead of 404", False,
    )
    tls_cert_file: str = key(
        "tlsCertFile", file_path,
        "the broker's certificate (with its chain), PEM; set, the port speaks TLS only. See "
        "[TLS](operations.md#tls)", "", kind=OUR_OWN,
    )
    tls_key_file: str = key(
        "tlsKeyFile", file_path, "its key, PEM, if that is not in `tlsCertFile`", "", kind=OUR_OWN,
    )
    tls_client_ca_file: str = key(
        "tlsClientCaFile", file_path, "authorities that sign the certificates of clients, PEM", "", kind=OUR_OWN,
    )
    tls_client_auth: str = key(
        "tlsClientAuth", one_of("none", "optional", "required"),
        "whether clients show a certificate: `none`, `optional` or `required`", "",
        shown="`required` with `tlsClientCaFile`, else `none`", kind=OUR_OWN,
    )
    tls_handshake_timeout_ms: int = key(
        "tlsHandshakeTimeout", _MILLISECONDS, "ms for a client's handshake", 10_000, kind=OUR_OWN,
    )
    dashboard_http_port: int = key("dashboardHttpPort", _PORT, "", ports.METAQ_DASHBOARD, kind=WITHOUT_EFFECT)
    app_class_path: str = key("appClassPath", plain, "", "", kind=WITHOUT_EFFECT)
    get_process_thread_count: int = key("getProcessThreadCount", _COUNT, "", 1, kind=WITHOUT_EFFECT)
    put_process_thread_count: int = key("putProcessThreadCount", _COUNT, "", 1, kind=WITHOUT_EFFECT)
    quartz_thread_count: int = key("quartzThreadCount", _COUNT, "", 5, kind=WITHOUT_EFFECT)
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperConfig:
    """The ``[zookeeper]`` section; with an empty ``connect``, ZooKeeper is not used."""

    # fmt: off
    connect: str = key(
        "zk.zkConnect", zookeeper_hosts,
        "`HOST:PORT,HOST:PORT`; with a `/PATH` after it everything is below that. Without it, the broker does not use "
        "ZooKeeper", "",
    )
    enable: bool = key(
        "zk.zkEnable", boolean, "`false`: the broker does not use ZooKeeper, whatever `zk.zkConnect` says", True,
    )
    root: str = key("zk.zkRoot", zookeeper_path, "where MetaQ's tree begins", "/meta")
    session_timeout_ms: int = key(
        "zk.zkSessionTimeoutMs", _MILLISECONDS,
        "after this time without contact, ZooKeeper ends the broker's session", 30_000,
    )
    connection_timeout_ms: int = key(
        "zk.zkConnectionTimeoutMs", _MILLISECONDS, "how long a start waits for ZooKeeper", 30_000,
    )
    sync_time_ms: int = key(
        "zk.zkSyncTimeMs", number(0, INT32_MAX),
        "how long a stopping broker still serves clients after it has removed its nodes from ZooKeeper", 5_000,
    )
    # fmt: on

    @property
    def has_address(self) -> bool:
        """Whether the broker uses ZooKeeper."""
        return self.enable and bool(self.connect)

    @property
    def address(self) -> ZooKeeperAddress:
        """The address of MetaQ's tree; a path after the hosts of ``connect`` is above ``root``."""
        hosts, slash, above = self.connect.partition("/")
        return ZooKeeperAddress(hosts, slash + above + self.root)


TOPIC_PREFIX: Final = "topic="
"""A section whose name begins so has the settings of one topic."""

TOPIC_KEYS: Final = keys_of(TopicConfig)
SYSTEM_KEYS: Final = keys_of(SystemConfig)
ZOOKEEPER_KEYS: Final = keys_of(ZooKeeperConfig)
