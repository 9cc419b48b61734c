"""The rows of a format's table of options: how each is spelt and read, what it defaults to, where it may stand.

Here are those that formats share, under the same names; a format adds its own, and ``parsing.OptionTable`` reads them.
The tables in the documentation are checked against the rows.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq_spark.columns.row_layout import choose_columns
from metaq_spark.columns.value_schema import parse_value_schema
from metaq_spark.options import values
from metaq_spark.options.positions import Notation


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

TLS_VERIFY: Final = ("full", "ca", "none")
"""What `tlsVerify` says, the default first."""

CHECKPOINT_LOCATION: Final = "checkpointlocation"

SET_BY_SPARK: Final = frozenset({CHECKPOINT_LOCATION, "queryname", "serialization.format"})
"""Options of Spark's own that it hands to a source or sink as well."""


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


def selection_rows(notation: Notation) -> tuple[Option, ...]:
    """What to read."""
    first, second = notation.examples
    brokers = "broker ids" if first[0].isdigit() else "names such as `broker-a`"
    return (
        Option(
            "subscribe", "topics", values.topics, UNSET, READ,
            "Topics to read, separated by commas. Exactly one of `subscribe`, `subscribePattern` and `assign` is "
            "needed.",
        ),
        Option(
            "subscribePattern", "topic_pattern", values.pattern, UNSET, READ,
            "Regular expression (Python's) for the whole name of a topic; topics that appear later are read too.",
        ),
        Option(
            "assign", "assigned", notation.assignment, UNSET, READ,
            f'Partitions to read and no others, as JSON: `{{"orders": ["{first}", "{second}"]}}`.',
        ),
        Option(
            "waitForTopic", "wait_for_topic", values.boolean, "false", READ,
            "Whether a topic that no broker knows yet is waited for (a batch reads nothing of it) instead of an error.",
        ),
        Option(
            "requireBrokers", "required_brokers", values.names, UNSET, READ,
            f"Brokers without which a read must not begin, separated by commas: {brokers}. Otherwise a batch, or the "
            "first look of a run, takes the brokers that are found for all that there are.",
        ),
    )  # fmt: skip


def position_rows(notation: Notation) -> tuple[Option, ...]:
    """Where to start and to stop."""
    return (
        Option(
            "startingOffsets", "starting_offsets", notation.position,
            {Use.BATCH_READ: "earliest", Use.STREAM_READ: "latest"}, READ,
            f"Where to start: `earliest`, `latest` (streams only), `group`, or JSON with a {notation.offset} for each "
            "partition. A stream uses it only when its checkpoint is new.",
        ),
        Option(
            "startingTimestamp", "starting_timestamp_ms", values.timestamp_ms, UNSET, READ,
            "Start at the first message at or after this time: milliseconds since 1970, or ISO 8601. Goes before "
            "`startingOffsetsByTimestamp`, which goes before `startingOffsets`.",
        ),
        Option(
            "startingOffsetsByTimestamp", "starting_timestamps", notation.timestamps, UNSET, READ,
            "The same with a time for each partition, as JSON.",
        ),
        Option(
            "startingOffsetsByTimestampStrategy", "no_message_strategy", values.one_of("error", "latest"), "error",
            READ,
            "What a start by time does where no message is that new: `error`, or begin at `latest`.",
        ),
        Option(
            "endingOffsets", "ending_offsets", notation.position, "latest", BATCH_READ,
            f"Where to stop (exclusive): `latest`, or JSON with one {notation.offset} for each partition.",
        ),
        Option(
            "endingTimestamp", "ending_timestamp_ms", values.timestamp_ms, UNSET, BATCH_READ,
            "Stop before the first message at or after this time; at `latest` where no message is that new. Goes "
            "before `endingOffsetsByTimestamp`, which goes before `endingOffsets`.",
        ),
        Option(
            "endingOffsetsByTimestamp", "ending_timestamps", notation.timestamps, UNSET, BATCH_READ,
            "The same with a time for each partition, as JSON.",
        ),
    )  # fmt: skip


LIMIT_ROWS: Final = (
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
)  # fmt: skip
"""How much a micro-batch and a task hold."""


def columns_row(types: Mapping[str, object]) -> Option:
    """Which of the columns ``types`` a read has."""

    def chosen(text: str) -> tuple[str, ...]:
        return choose_columns(text, types)

    return Option(
        "columns", "columns", chosen, UNSET, READ,
        "Columns to produce, separated by commas, in that order; all if not given. Leaving out what is not needed is "
        "faster, because Spark tells a Python source nothing about it.",
    )  # fmt: skip


def push_filters_row(columns: str) -> Option:
    """Whether conditions of a batch read on ``columns``, such as "`a` and `b`", are pushed."""
    return Option(
        "pushFilters", "push_filters", values.boolean, "false", BATCH_READ,
        f"Whether conditions on {columns} narrow what is fetched. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`.",
    )  # fmt: skip


VALUE_ROWS: Final = (
    Option(
        "valueFormat", "value_format", values.one_of("binary", "string", "json"), "binary", READ,
        "What the column `value` is: the bytes, UTF-8 text, or JSON parsed by `valueSchema`.",
    ),
    Option(
        "valueSchema", "value_schema", parse_value_schema, UNSET, READ,
        "Spark SQL type of the JSON values, such as `id BIGINT, name STRING`.",
    ),
)  # fmt: skip
"""What the column ``value`` is."""

LOSS_ROWS: Final = (
    Option(
        "failOnDataLoss", "fail_on_data_loss", values.boolean, "true", READ,
        "Whether a query fails when bytes that it had to read are gone; `false` logs a warning and reads on.",
    ),
    Option(
        "proveOffsets", "prove_offsets", values.boolean, "true", STREAM_READ,
        "Whether the checkpoint says which message was read last of each partition, so that a broker that was put back "
        "to an older copy is noticed. `false` for a checkpoint that an older version has to read.",
    ),
    Option(
        "lossGraceMs", "loss_grace_ms", values.duration_ms, "30s", STREAM_READ,
        "How long a partition may end before the place already read, or be listed no more by a broker that answers, "
        "until that fails the query.",
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
)  # fmt: skip
"""What is done where messages are gone, damaged or cannot be reached."""


def commit_row(system: str) -> Option:
    """Whether a stream sets the offsets of a group of MetaQ or RocketMQ."""
    return Option(
        "commitGroupOffsets", "commit_group_offsets", values.boolean, "false", STREAM_READ,
        f"Whether the group's offsets are set to what Spark has completed, for {system}'s own tools.",
    )  # fmt: skip


FETCH_ROW: Final = Option(
    "fetchBytes", "fetch_bytes", values.size_up_to(1 << 30), "1m", READ,
    "Bytes asked of a broker at a time. A broker may answer with fewer.",
)  # fmt: skip

OFFSET_POLL_ROW: Final = Option(
    "offsetPollMs", "offset_poll_ms", values.milliseconds, "20", STREAM_READ,
    "Shortest time between two questions to the brokers for their newest offsets.",
)  # fmt: skip

TOPIC_ROW: Final = Option(
    "topic", "topic", values.topic, UNSET, WRITE,
    "Topic to write to; takes precedence over a `topic` column.",
)  # fmt: skip

DELIVERY_ROWS: Final = (
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
        "missingBatches", "missing_batches", values.span, UNSET, WRITE,
        "Batches of an exactly-once write that its brokers do not know and that it goes on behind, as `FIRST-LAST`; "
        "the error about them names the value.",
    ),
)  # fmt: skip
"""How often a row is written, and what exactly-once writes have beside that."""


def block_rows(bytes_max: int, request: str, limit: str = "") -> tuple[Option, ...]:
    """How much is sent at a time: in ``request``, such as "a queue in one batch"."""
    return (
        Option(
            "blockBytes", "block_bytes", values.size_up_to(bytes_max), "2m", WRITE,
            f"Bytes of messages sent to {request}{limit}.",
        ),
        Option(
            "blockMessages", "block_messages", values.messages, "100000", WRITE,
            f"Messages sent to {request}, at most.",
        ),
    )  # fmt: skip


CONNECTION_ROWS: Final = (
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
        "brokerWaitMs", "broker_wait_ms", values.wait_ms,
        {Use.BATCH_READ: "0", Use.STREAM_READ: "10m", Use.BATCH_WRITE: "0", Use.STREAM_WRITE: "10m"}, ANY,
        "How long, beyond `retries`, a broker that cannot be reached is waited for: by a stream's planning, by tasks "
        "under way, and by what begins and ends a micro-batch of a sink. What a query does first does not wait: the "
        "first look of a run, and batch 0 of a write.",
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
    Option(
        "tlsVerify", "tls_verify", values.one_of(*TLS_VERIFY), TLS_VERIFY[0], ANY,
        "What is checked of a server's certificate: `full`: who signed it, and that it is for this host; `ca`: who "
        "signed it; `none`: nothing. `none` turns TLS on without `tlsCaFile` and is not safe: whoever answers is "
        "taken for the server, and gets keys and messages.",
    ),
)  # fmt: skip
"""How connections are made."""
