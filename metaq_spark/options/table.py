"""The table of options: how each is spelt and read, what it defaults to, where it may stand, what it is for.

The tables in ``docs/connector.md`` are checked against it. ``options`` turns it into the objects that the rest of the
connector works with.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq_spark.options import values
from metaq_spark.options.positions import parse_position, parse_timestamps
from metaq_spark.options.selection import parse_assignment
from metaq_spark.source.row_layout import parse_columns
from metaq_spark.source.value_schema import parse_value_schema


class Use(enum.Enum):
    """What an option may be given for. The value is the wording in messages and in the documentation."""

    BATCH_READ = "batch read"
    STREAM_READ = "streaming read"
    BATCH_WRITE = "batch write"
    STREAM_WRITE = "streaming write"


READ: Final = frozenset({Use.BATCH_READ, Use.STREAM_READ})
BATCH_READ: Final = frozenset({Use.BATCH_READ})
STREAM_READ: Final = frozenset({Use.STREAM_READ})
WRITE: Final = frozenset({Use.BATCH_WRITE, Use.STREAM_WRITE})
BATCH_WRITE: Final = frozenset({Use.BATCH_WRITE})
ANY: Final = READ | WRITE

UNSET: Final = ""
"""Default of an option that has no value unless it is given."""

SYSTEM_CA: Final = "system"
"""What `tlsCaFile` says for the authorities that the machine trusts."""

SET_BY_SPARK: Final = frozenset({"checkpointlocation", "queryname", "serialization.format"})
"""Options of Spark's own that it hands to a source or sink as well."""

_BROKERS: Final = "use brokers: host:port of each broker, separated by commas"
_TOPICS: Final = ("use subscribe: topics, separated by commas", "use topic: one topic, or a column topic for more")
_LIMIT: Final = "use maxBytesPerTrigger, or maxOffsetsPerTrigger for messages"
HABITS: Final[Mapping[str, str | tuple[str, str]]] = {
    "kafka.bootstrap.servers": _BROKERS,
    "bootstrap.servers": _BROKERS,
    "bootstrapservers": _BROKERS,
    "servers": _BROKERS,
    "broker": _BROKERS,
    "host": _BROKERS,
    "url": _BROKERS,
    "nameserver": _BROKERS,
    "nameservers": _BROKERS,
    "zk": "use zookeeper: host:port,host:port/root",
    "zkconnect": "use zookeeper: host:port,host:port/root",
    "zk.zkconnect": "use zookeeper: host:port,host:port/root",
    "topics": _TOPICS,
    "topic": _TOPICS,
    "subscribe": ("use subscribe", "use topic: one topic, or a column topic for more"),
    "path": ("a topic has no path; use subscribe: topics, separated by commas", "a topic has no path; use topic"),
    "partitions": 'use assign: JSON such as {"orders": ["0-0", "0-1"]}',
    "checkpoint": "use checkpointLocation",
    "checkpointdir": "use checkpointLocation",
    "checkpoint.location": "use checkpointLocation",
    "startingposition": "use startingOffsets",
    "auto.offset.reset": "use startingOffsets: earliest or latest",
    "kafka.group.id": "use group",
    "group.id": "use group",
    "groupid": "use group",
    "consumergroup": "use group",
    "maxfilespertrigger": _LIMIT,
    "maxratepertrigger": _LIMIT,
    "tag": "use messageTypes: types, separated by commas",
    "tags": "use messageTypes: types, separated by commas",
    "includeheaders": "a MetaQ message has no headers; the column attribute is what goes beside its value",
    "key": ("a MetaQ message has no key", "use a column key: the same key goes to the same partition"),
    "mode": ("leave it out: a read has no mode", 'use .mode("append") or .outputMode("append")'),
    "localwrites": "leave it out: blocks are always sent, so it is not needed any more",
}
"""Keys that other connectors have, or that this one had, in lower case: what to do instead; for reads and for writes
where that differs."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    ``field`` is the attribute of the parsed object; ``default`` the text that stands in when the option is not given,
    or one text for each use where they differ.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    default: str | Mapping[Use, str]
    uses: frozenset[Use]
    doc: str

    def default_for(self, use: Use) -> str:
        """The default text when the option is used for ``use``."""
        return self.default if isinstance(self.default, str) else self.default[use]


OPTIONS: Final = (
    Option(
        "brokers", "brokers", values.addresses, UNSET, ANY,
        "Brokers to talk to: `host:port`, separated by commas. Every broker of the topics must be named. Exactly one "
        "of `brokers` and `zookeeper` is needed.",
    ),
    Option(
        "zookeeper", "zookeeper", ZooKeeperAddress.parse, UNSET, ANY,
        "Where brokers register, `host:port,host:port/root`; the root is `/meta` if it is left out. Brokers are found "
        "there, and masters are preferred to slaves.",
    ),
    Option(
        "subscribe", "topics", values.topics, UNSET, READ,
        "Topics to read, separated by commas. Exactly one of `subscribe`, `subscribePattern` and `assign` is needed.",
    ),
    Option(
        "subscribePattern", "topic_pattern", values.pattern, UNSET, READ,
        "Regular expression (Python's) for the whole name of a topic; topics that appear later are read too.",
    ),
    Option(
        "assign", "assigned", parse_assignment, UNSET, READ,
        "Partitions to read and no others, as JSON: `{\"orders\": [\"0-0\", \"0-1\"]}`.",
    ),
    Option(
        "waitForTopic", "wait_for_topic", values.boolean, "false", READ,
        "Whether a topic that no broker knows yet is waited for (a batch reads nothing of it) instead of an error.",
    ),
    Option(
        "startingOffsets", "starting_offsets", parse_position,
        {Use.BATCH_READ: "earliest", Use.STREAM_READ: "latest"}, READ,
        "Where to start: `earliest`, `latest` (streams only), `group`, or JSON with a byte offset for each partition. "
        "A stream uses it only when its checkpoint is new.",
    ),
    Option(
        "startingTimestamp", "starting_timestamp_ms", values.timestamp_ms, UNSET, READ,
        "Start at the first message at or after this time: milliseconds since 1970, or ISO 8601. Goes before "
        "`startingOffsetsByTimestamp`, which goes before `startingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestamp", "starting_timestamps", parse_timestamps, UNSET, READ,
        "The same with a time for each partition, as JSON.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", "no_message_strategy", values.one_of("error", "latest"), "error", READ,
        "What a start by time does where no message is that new: `error`, or begin at `latest`.",
    ),
    Option(
        "endingOffsets", "ending_offsets", parse_position, "latest", BATCH_READ,
        "Where to stop (exclusive): `latest`, or JSON with one byte offset for each partition.",
    ),
    Option(
        "endingTimestamp", "ending_timestamp_ms", values.timestamp_ms, UNSET, BATCH_READ,
        "Stop before the first message at or after this time; at `latest` where no message is that new. Goes before "
        "`endingOffsetsByTimestamp`, which goes before `endingOffsets`.",
    ),
    Option(
        "endingOffsetsByTimestamp", "ending_timestamps", parse_timestamps, UNSET, BATCH_READ,
        "The same with a time for each partition, as JSON.",
    ),
    Option(
        "maxBytesPerTrigger", "trigger_bytes_max", values.size, "1g", STREAM_READ,
        "Most bytes of one micro-batch, shared out over the partitions in proportion to their backlog.",
    ),
    Option(
        "maxOffsetsPerTrigger", "trigger_messages_max", values.messages, UNSET, STREAM_READ,
        "Most messages of one micro-batch, shared out in the same way.",
    ),
    Option(
        "minOffsetsPerTrigger", "trigger_messages_min", values.messages, UNSET, STREAM_READ,
        "Messages to wait for before a micro-batch is made, at most for `maxTriggerDelay`.",
    ),
    Option(
        "maxTriggerDelay", "trigger_delay_ms_max", values.duration_ms, "15m", STREAM_READ,
        "Longest wait for `minOffsetsPerTrigger`: milliseconds, or a number with `ms`, `s`, `m`, `h` or `d`.",
    ),
    Option(
        "minPartitions", "task_count_min", values.task_count, UNSET, READ,
        "Least number of tasks of a read: large ranges are split at message boundaries, as far as there are enough "
        "messages.",
    ),
    Option(
        "minBytesPerPartition", "task_bytes_min", values.size, "64k", READ,
        "Small ranges are read together by one task, up to so many bytes: partitions with few messages need no task "
        "each. `1` = always a task for each partition.",
    ),
    Option(
        "maxBytesPerPartition", "task_bytes_max", values.size, UNSET, READ,
        "Most bytes of one task; a larger range of a partition is split at message boundaries. A single message may be "
        "larger.",
    ),
    Option(
        "columns", "columns", parse_columns, UNSET, READ,
        "Columns to produce, separated by commas, in that order; all if not given. Leaving out what is not needed is "
        "faster, because Spark tells a Python source nothing about it.",
    ),
    Option(
        "messageTypes", "message_types", values.message_types, UNSET, READ,
        "Read only messages whose attribute is one of these, separated by commas; the broker leaves the others out.",
    ),
    Option(
        "pushFilters", "push_filters", values.boolean, "false", BATCH_READ,
        "Whether conditions on `attribute`, `offset` and `timestamp` narrow what is fetched. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`.",
    ),
    Option(
        "valueFormat", "value_format", values.one_of("binary", "string", "json"), "binary", READ,
        "What the column `value` is: the bytes, UTF-8 text, or JSON parsed by `valueSchema`.",
    ),
    Option(
        "valueSchema", "value_schema", parse_value_schema, UNSET, READ,
        "Spark SQL type of the JSON values, such as `id BIGINT, name STRING`.",
    ),
    Option(
        "attributeFormat", "attribute_format", values.one_of("string", "map"), "string", READ,
        "What the column `attribute` is: the text, or a map read from `k=v;k2=v2`.",
    ),
    Option(
        "failOnDataLoss", "fail_on_data_loss", values.boolean, "true", READ,
        "Whether a query fails when bytes that it had to read are gone; `false` logs a warning and reads on.",
    ),
    Option(
        "lossGraceMs", "loss_grace_ms", values.duration_ms, "30s", STREAM_READ,
        "How long a partition may end before the place already read, or be listed no more by a broker that answers, "
        "until that fails the query.",
    ),
    Option(
        "brokerWaitMs", "broker_wait_ms", values.duration_ms, "10m", STREAM_READ,
        "How long a broker that cannot be reached is waited for, its partitions staying where they are, before the "
        "query fails. A batch, and the first look of a run, do not wait.",
    ),
    Option(
        "onCorrupt", "on_corrupt", values.one_of("fail", "skip", "deadletter"), "fail", READ,
        "What is done with a message that does not match its checksum: `fail`, `skip` it with a warning, or store its "
        "bytes in `deadLetterTopic` and go on.",
    ),
    Option(
        "deadLetterTopic", "dead_letter_topic", values.topic, UNSET, READ,
        "Topic for what `onCorrupt` = `deadletter` sets aside, with place and reason in the attribute.",
    ),
    Option(
        "group", "group", values.group, UNSET, READ,
        "MetaQ consumer group for `startingOffsets` = `group` and `commitGroupOffsets`.",
    ),
    Option(
        "commitGroupOffsets", "commit_group_offsets", values.boolean, "false", STREAM_READ,
        "Whether the group's offsets are set to what Spark has completed, for MetaQ's own tools.",
    ),
    Option(
        "fetchBytes", "fetch_bytes", values.size_up_to(1 << 30), "1m", READ,
        "Bytes asked of a broker at a time. A broker may answer with fewer.",
    ),
    Option(
        "localReads", "local_reads", values.boolean, "true", READ,
        "Whether a task on a broker's machine that may read the broker's files does so, instead of having larger "
        "ranges sent.",
    ),
    Option(
        "offsetPollMs", "offset_poll_ms", values.milliseconds, "20", STREAM_READ,
        "Shortest time between two questions to the brokers for their newest offsets.",
    ),
    Option(
        "topic", "topic", values.topic, UNSET, WRITE,
        "Topic to write to; takes precedence over a `topic` column.",
    ),
    Option(
        "delivery", "delivery", values.one_of("at_least_once", "exactly_once"), "at_least_once", WRITE,
        "`at_least_once`, or `exactly_once`: every micro-batch is one transaction over all its tasks and brokers.",
    ),
    Option(
        "transactionTimeoutMs", "transaction_timeout_ms", values.duration_ms, "10m", WRITE,
        "How long a broker keeps what a task of an exactly-once write has begun when it falls silent; the broker's "
        "`maxTxTimeoutInSeconds` caps it.",
    ),
    Option(
        "txnAppId", "txn_app_id", values.transaction_name, UNSET, BATCH_WRITE,
        "Name of an exactly-once batch write that may be repeated, for example in `foreachBatch`; with `txnVersion`.",
    ),
    Option(
        "txnVersion", "txn_version", values.version, UNSET, BATCH_WRITE,
        "Number of the write under `txnAppId`, growing: the same number again changes nothing, a lower one is refused.",
    ),
    Option(
        "repeatedBatch", "repeated_batch", values.one_of("fail", "accept"), "fail", WRITE,
        "When a batch of an exactly-once write was written before with other rows: `fail`, or `accept` that those "
        "count and the rows at hand are dropped.",
    ),
    Option(
        "orderedPartitions", "ordered_partitions", values.ordered_partitions, UNSET, WRITE,
        "Fixed list of partitions for `key` and `partition`, as MetaQ's ordered producer has: `BROKER_ID:COUNT;...`. A "
        "message whose partition is away fails the write instead of going elsewhere.",
    ),
    Option(
        "blockBytes", "block_bytes", values.size_up_to(1 << 26), "2m", WRITE,
        "Bytes of messages sent to a partition in one request; not above the broker's `maxBatchSize`.",
    ),
    Option(
        "blockMessages", "block_messages", values.messages, "100000", WRITE,
        "Messages sent to a partition in one request, at most.",
    ),
    Option(
        "connectTimeoutMs", "connect_timeout_ms", values.milliseconds, "5000", ANY,
        "Longest wait for a connection to a broker.",
    ),
    Option(
        "requestTimeoutMs", "request_timeout_ms", values.milliseconds, "30000", ANY,
        "Longest wait for a broker's answer.",
    ),
    Option(
        "retries", "retries", values.count, "3", ANY,
        "How often in a row something is asked or sent again after a lost connection or no answer.",
    ),
    Option(
        "retryIntervalMs", "retry_interval_ms", values.pause, "200", ANY,
        "Pause before the first such try; it doubles with each further one.",
    ),
    Option(
        "tlsCaFile", "tls_ca_file", values.path, UNSET, ANY,
        "Turns TLS on: PEM file of the authority that signs the brokers' certificates, on the driver and on every "
        "executor; `system` = those that the machine trusts.",
    ),
    Option(
        "tlsCertFile", "tls_cert_file", values.path, UNSET, ANY,
        "PEM file of the certificate to show to brokers that ask for one.",
    ),
    Option(
        "tlsKeyFile", "tls_key_file", values.path, UNSET, ANY,
        "PEM file of its key, if that is not in `tlsCertFile`.",
    ),
)  # fmt: skip
