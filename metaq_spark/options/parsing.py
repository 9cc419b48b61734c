"""The options that all formats share: rows as fields of frozen classes, and the rules between them.

Only this package reads the raw options, which Spark passes as text with lower-cased keys. A format derives its classes
from these and adds its own rows.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from pyspark.sql.types import DataType

from metaq.errors import BrokerError, DeadlineExceeded, MetaqError
from metaq.model import Partition
from metaq.net.reach import Reach
from metaq.net.retry import RetryPolicy
from metaq.net.tls import TlsSettings
from metaq.net.transport import Timeouts
from metaq_spark.columns.json_rules import MODES, PERMISSIVE, JsonRules
from metaq_spark.columns.row_layout import RowLayout
from metaq_spark.columns.value_schema import parse_value_schema
from metaq_spark.errors import OptionError
from metaq_spark.options import values
from metaq_spark.options.positions import Earliest, Group, Latest, Notation, Position, Timestamps
from metaq_spark.options.selection import Assigned, Named, Selection, TopicPattern
from metaq_spark.options.table import (
    ANY,
    BATCH_READ,
    BATCH_WRITE,
    CHECKPOINT_LOCATION,
    READ,
    STREAM_READ,
    STREAM_WRITE,
    UNSET,
    WRITE,
    Use,
    option,
)

SYSTEM_CA: Final = "system"
"""Value of `tlsCaFile` for the machine's trusted authorities."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions(ABC):
    """Connection options. Times in milliseconds. A format adds the options for its brokers' addresses.

    What is made of options is made once, usually on the driver, and is pickled with them.
    """

    streaming: bool = False

    # fmt: off
    connect_timeout_ms: int = option(
        "connectTimeoutMs", values.milliseconds, "5000", ANY,
        "Longest wait for a connection to a broker.",
    )
    request_timeout_ms: int = option(
        "requestTimeoutMs", values.milliseconds, "30000", ANY,
        "Longest wait for a broker's answer.",
    )
    retries: int = option(
        "retries", values.count, "3", ANY,
        "How often in a row a request is sent again after a lost connection or without an answer.",
    )
    retry_interval_ms: int = option(
        "retryIntervalMs", values.pause, "200", ANY,
        "Pause before the first retry; it doubles with each further one.",
    )
    broker_wait_ms: int = option(
        "brokerWaitMs", values.wait_ms,
        {Use.BATCH_READ: "0", Use.STREAM_READ: "10m", Use.BATCH_WRITE: "0", Use.STREAM_WRITE: "10m"}, ANY,
        "How long, beyond `retries`, to wait for a broker that cannot be reached: in the planning of a stream, in "
        "running tasks, and at the beginning and the end of a sink's micro-batch. Tasks that write to MetaQ also wait "
        "that long for a broker whose disk is full. The first planning of a run and batch 0 of a write do not wait, "
        "except for a broker that the cluster knows and that has no master at the moment: for `requestTimeoutMs`.",
    )
    tls_ca_file: str | None = option(
        "tlsCaFile", values.path, UNSET, ANY,
        "Turns TLS on: PEM file of the authority that signs the brokers' certificates, on the driver and on every "
        "executor; `system` = those that the machine trusts.",
    )
    tls_cert_file: str | None = option(
        "tlsCertFile", values.path, UNSET, ANY,
        "PEM file of the certificate to show to brokers that ask for one.",
    )
    tls_key_file: str | None = option(
        "tlsKeyFile", values.path, UNSET, ANY,
        "PEM file of its key, if that is not in `tlsCertFile`.",
    )
    tls_verify: str = option(
        "tlsVerify", values.OneOf("full", "ca", "none"), "full", ANY,
        "What is checked of a server's certificate: `full`: who signed it, and that it is for this host; `ca`: who "
        "signed it; `none`: nothing. `none` turns TLS on without `tlsCaFile` and is not safe: whoever answers is "
        "taken for the server, and gets keys and messages.",
    )
    # fmt: on

    @cached_property
    def tls(self) -> TlsSettings | None:
        """How connections are secured, ``None`` if they are not."""
        verify = self.tls_verify != "none"
        if self.tls_ca_file is None and verify:
            return None
        ca_file = None if self.tls_ca_file == SYSTEM_CA else self.tls_ca_file
        full = self.tls_verify == "full"
        return TlsSettings(ca_file, self.tls_cert_file, self.tls_key_file, check_hostname=full, verify=verify)

    @cached_property
    def retry_policy(self) -> RetryPolicy:
        """Number and pauses of retries, without waiting for a restart. A broker that is known to be there, and has no
        master at the moment, is waited for as long as for an answer.
        """
        return RetryPolicy(self.retries, self.retry_interval_ms / 1000, election_s=self.request_timeout_ms / 1000)

    @cached_property
    def waiting_policy(self) -> RetryPolicy:
        """The policy for work in progress, which a broker's restart must not end."""
        return replace(self.retry_policy, wait_s=self.broker_wait_ms / 1000)

    @cached_property
    def first_policy(self) -> RetryPolicy:
        """The policy for first requests: a stream does not wait, because a wrong option would look like a restart.

        A batch waits only if the option says so.
        """
        return self.retry_policy if self.streaming else self.waiting_policy

    @property
    @abstractmethod
    def found_by(self) -> str:
        """How the options find the brokers, for messages."""

    def advice_after(self, error: MetaqError, otherwise: str) -> str:
        """Return advice after all attempts failed, the last one with ``error``; ``otherwise`` if the broker
        answered.
        """
        if not error.away:
            return otherwise
        tried = f"It was tried {self.retries + 1} times in a row"
        if self.broker_wait_ms:
            tried += f", and waited for up to {self.broker_wait_ms / 1000:g} s (brokerWaitMs)"
        tried += f"; brokers are found by {self.found_by}"
        if isinstance(error, DeadlineExceeded):
            return f"{tried}. If the broker is only slow, raise the option requestTimeoutMs ({self.request_timeout_ms})"
        if isinstance(error, BrokerError):
            return f"{tried}. Make space on the broker's disk"
        return f"{tried}. Start the broker; if it takes longer to come back, raise the option brokerWaitMs"

    @cached_property
    def timeouts(self) -> Timeouts:
        return Timeouts(self.connect_timeout_ms / 1000, self.request_timeout_ms / 1000)

    @cached_property
    def reach(self) -> Reach:
        """How connections are made: the settings of pools."""
        return Reach(self.timeouts, self.tls)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(ConnectionOptions):
    """A read, batch or streaming. Options of the other kind have their defaults and are not used.

    Sizes in bytes, times in milliseconds, counts in messages or tasks, as the names end; ``None`` = not given.
    """

    # fmt: off
    topics: tuple[str, ...] | None = option(
        "subscribe", Notation.topics, UNSET, READ,
        "Topics to read, separated by commas. Exactly one of `subscribe`, `subscribePattern` and `assign` is needed.",
    )
    topic_pattern: re.Pattern[str] | None = option(
        "subscribePattern", values.pattern, UNSET, READ,
        "Regular expression (Python's) for the whole name of a topic; topics that appear later are read too.",
    )
    assigned: Mapping[str, frozenset[Partition]] | None = option(
        "assign", Notation.assignment, UNSET, READ,
        'Partitions to read and no others, as JSON: `{"orders": ["{first}", "{second}"]}`.',
    )
    wait_for_topic: bool = option(
        "waitForTopic", values.boolean, "false", READ,
        "Whether to wait for a topic that no broker knows yet (a batch reads nothing from it). If not, it is an error.",
    )
    required_brokers: tuple[str, ...] | None = option(
        "requireBrokers", values.names, UNSET, READ,
        "Brokers without which a read must not begin, separated by commas: {brokers}. Otherwise a batch, or the "
        "first planning of a run, assumes that the brokers that are found are all brokers.",
    )
    starting_offsets: Position = option(
        "startingOffsets", Notation.position, {Use.BATCH_READ: "earliest", Use.STREAM_READ: "latest"}, READ,
        "Where to start: `earliest`, `latest` (streams only), `group`, or JSON with a {offset} for each partition. "
        "A stream uses it only when its checkpoint is new.",
    )
    starting_timestamp_ms: int | None = option(
        "startingTimestamp", values.timestamp_ms, UNSET, READ,
        "Start at the first message at or after this time: milliseconds since 1970, or ISO 8601. Goes before "
        "`startingOffsetsByTimestamp`, which goes before `startingOffsets`.",
    )
    starting_timestamps: Timestamps | None = option(
        "startingOffsetsByTimestamp", Notation.timestamps, UNSET, READ,
        "The same with a time for each partition, as JSON.",
    )
    no_message_strategy: str = option(
        "startingOffsetsByTimestampStrategy", values.OneOf("error", "latest"), "error", READ,
        "What a start by time does where no message is that new: `error`, or begin at `latest`.",
    )
    ending_offsets: Position = option(
        "endingOffsets", Notation.position, "latest", BATCH_READ,
        "Where to stop (exclusive): `latest`, or JSON with one {offset} for each partition.",
    )
    ending_timestamp_ms: int | None = option(
        "endingTimestamp", values.timestamp_ms, UNSET, BATCH_READ,
        "Stop before the first message at or after this time; at `latest` where no message is that new. Goes "
        "before `endingOffsetsByTimestamp`, which goes before `endingOffsets`.",
    )
    ending_timestamps: Timestamps | None = option(
        "endingOffsetsByTimestamp", Notation.timestamps, UNSET, BATCH_READ,
        "The same with a time for each partition, as JSON.",
    )
    trigger_bytes_max: int = option(
        "maxBytesPerTrigger", values.size, "1g", STREAM_READ,
        "Most bytes of one micro-batch, shared out over the partitions in proportion to their backlog.",
    )
    trigger_messages_max: int | None = option(
        "maxOffsetsPerTrigger", values.messages, UNSET, STREAM_READ,
        "Most messages of one micro-batch, shared out in the same way.",
    )
    trigger_messages_min: int | None = option(
        "minOffsetsPerTrigger", values.messages, UNSET, STREAM_READ,
        "Messages to wait for before a micro-batch is made, at most for `maxTriggerDelay`.",
    )
    trigger_delay_ms_max: int = option(
        "maxTriggerDelay", values.duration_ms, "15m", STREAM_READ,
        "Longest wait for `minOffsetsPerTrigger`: milliseconds, or a number with `ms`, `s`, `m`, `h` or `d`.",
    )
    task_count_min: int | None = option(
        "minPartitions", values.task_count, UNSET, READ,
        "Least number of tasks of a read: large ranges are split at message boundaries, as far as there are enough "
        "messages.",
    )
    task_bytes_min: int = option(
        "minBytesPerPartition", values.size, "64k", READ,
        "Small ranges are read together by one task, up to so many bytes: partitions with few messages need no task "
        "each. `1` = always a task for each partition.",
    )
    task_bytes_max: int | None = option(
        "maxBytesPerPartition", values.size, UNSET, READ,
        "Most bytes of one task; a larger range of a partition is split at message boundaries. A single message may be "
        "larger.",
    )
    columns: tuple[str, ...] | None = option(
        "columns", Notation.chosen_columns, UNSET, READ,
        "Columns to produce, separated by commas, in that order; all if not given. Leaving out what is not needed is "
        "faster, because Spark tells a Python source nothing about it.",
    )
    push_filters: bool = option(
        "pushFilters", values.boolean, "false", BATCH_READ,
        "Whether conditions on {pushed} narrow what is fetched. Needs `spark.sql.python.filterPushdown.enabled=true`.",
    )
    value_format: str = option(
        "valueFormat", values.OneOf("binary", "string", "json"), "binary", READ,
        "What the column `value` is: the bytes, UTF-8 text, or JSON parsed by `valueSchema`.",
    )
    value_schema: DataType | None = option(
        "valueSchema", parse_value_schema, UNSET, READ,
        "Spark SQL type of the JSON values, such as `id BIGINT, name STRING`.",
    )
    json_mode: str = option(
        "mode", values.OneOf(*MODES), PERMISSIVE, READ,
        "What is done with a payload that is not JSON, or does not fit `valueSchema` in a part: `permissive` = what "
        "does not fit is null, `dropmalformed` = the message is left out, `failfast` = the query fails.",
    )
    corrupt_field: str | None = option(
        "columnNameOfCorruptRecord", values.field_name, UNSET, READ,
        "The field of `valueSchema`, of type STRING, that gets the text of a payload that does not fit completely. "
        "`_corrupt_record` if `valueSchema` has that field.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss", values.boolean, "true", READ,
        "Whether a query fails when bytes that it had to read are gone; `false` logs a warning and reads on.",
    )
    prove_offsets: bool = option(
        "proveOffsets", values.boolean, "true", STREAM_READ,
        "Whether the checkpoint says which message was read last of each partition, so that a broker that was put back "
        "to an older copy is noticed, and when the query began. `false` for a checkpoint that an older version has to "
        "read.",
    )
    loss_grace_ms: int = option(
        "lossGraceMs", values.duration_ms, "30s", STREAM_READ,
        "How long a partition may end before the position already read, or be missing from the list of a broker that "
        "answers, before the query fails.",
    )
    on_corrupt: str = option(
        "onCorrupt", values.OneOf("fail", "skip", "deadletter"), "fail", READ,
        "What is done with a message that does not match its checksum: `fail`, `skip` it with a warning, or store its "
        "bytes in `deadLetterTopic` and go on.",
    )
    dead_letter_topic: str | None = option(
        "deadLetterTopic", Notation.topic, UNSET, READ,
        "Topic for what `onCorrupt` = `deadletter` sets aside, with place and reason in the attribute.",
    )
    group: str | None = option(
        "group", Notation.group, UNSET, READ,
        "{system} consumer group for `startingOffsets` = `group` and `commitGroupOffsets`.",
    )
    commit_group_offsets: bool = option(
        "commitGroupOffsets", values.boolean, "false", STREAM_READ,
        "Whether the group's offsets are set to what Spark has completed, for {system}'s own tools.",
    )
    fetch_bytes: int = option(
        "fetchBytes", values.Size(1 << 30), "1m", READ,
        "Bytes asked of a broker at a time. A broker may answer with fewer.",
    )
    offset_poll_ms: int = option(
        "offsetPollMs", values.milliseconds, "20", STREAM_READ,
        "Shortest time between two questions to the brokers for their newest offsets.",
    )
    # fmt: on

    @property
    def dead_letters(self) -> bool:
        """Whether damaged messages are set aside."""
        return self.on_corrupt == "deadletter"

    @property
    @abstractmethod
    def row_layout(self) -> RowLayout:
        """The columns of the read."""

    @cached_property
    def selection(self) -> Selection:
        """The topics and partitions to read."""
        if self.topics is not None:
            return Named(self.topics)
        return TopicPattern(self.topic_pattern) if self.topic_pattern is not None else Assigned(self.assigned or {})

    @cached_property
    def start(self) -> Position:
        """Where to start: times go before offsets."""
        return _position(self.starting_timestamp_ms, self.starting_timestamps, self.starting_offsets)

    @cached_property
    def end(self) -> Position:
        """Where a batch stops: times go before offsets."""
        return _position(self.ending_timestamp_ms, self.ending_timestamps, self.ending_offsets)

    @property
    def start_option(self) -> str:
        """The option that determined ``start``."""
        return _position_option("starting", self.starting_timestamp_ms, self.starting_timestamps)

    @property
    def end_option(self) -> str:
        """The option that determined ``end``."""
        return _position_option("ending", self.ending_timestamp_ms, self.ending_timestamps)


def _position(of_all_ms: int | None, of_each: Timestamps | None, otherwise: Position) -> Position:
    return Timestamps(of_all_ms) if of_all_ms is not None else of_each or otherwise


def _position_option(side: str, of_all_ms: int | None, of_each: Timestamps | None) -> str:
    if of_all_ms is not None:
        return f"{side}Timestamp"
    return f"{side}OffsetsByTimestamp" if of_each else f"{side}Offsets"


@dataclass(frozen=True, kw_only=True)
class WriteOptions(ConnectionOptions):
    """A write. ``topic`` is ``None`` when every row names its own."""

    # fmt: off
    topic: str | None = option(
        "topic", Notation.topic, UNSET, WRITE,
        "Topic to write to; takes precedence over a `topic` column.",
    )
    block_bytes: int = option(
        "blockBytes", values.Size(1 << 26), "2m", WRITE,
        "Bytes of messages sent to {request}.",
    )
    block_messages: int = option(
        "blockMessages", values.messages, "100000", WRITE,
        "Messages sent to {request}, at most.",
    )
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class TransactionOptions(WriteOptions):
    """A write that may be exactly once; ``None`` = not given."""

    # fmt: off
    delivery: str = option(
        "delivery", values.OneOf("at_least_once", "exactly_once"), "at_least_once", WRITE,
        "`at_least_once`, or `exactly_once`: every micro-batch is one transaction over all its tasks and brokers.",
    )
    transaction_timeout_ms: int = option(
        "transactionTimeoutMs", values.duration_ms, "10m", WRITE,
        "How long a broker keeps the unfinished transaction of a task of an exactly-once write from which it hears "
        "nothing; the broker's `maxTxTimeoutInSeconds` caps it.",
    )
    txn_app_id: str | None = option(
        "txnAppId", values.transaction_name, UNSET, BATCH_WRITE,
        "Name of an exactly-once batch write that may be repeated, for example in `foreachBatch`; with `txnVersion`.",
    )
    txn_version: int | None = option(
        "txnVersion", values.version, UNSET, BATCH_WRITE,
        "Number of the write under `txnAppId`, higher for each new write. The same number again changes nothing, a "
        "lower one is refused.",
    )
    repeated_batch: str = option(
        "repeatedBatch", values.OneOf("fail", "accept"), "fail", WRITE,
        "What happens when a batch of an exactly-once write was written before with other rows: `fail`, or `accept`: "
        "the earlier rows stay, and the new rows are dropped.",
    )
    full_refresh: str = option(
        "fullRefresh", values.OneOf("refuse", "write"), "refuse", STREAM_WRITE,
        "What an exactly-once sink of a declarative pipeline does after a full refresh, which reads its sources from "
        "the beginning: `refuse` to write, or `write` all rows again after those that are stored.",
    )
    missing_batches: tuple[int, int] | None = option(
        "missingBatches", values.span, UNSET, WRITE,
        "Batches of an exactly-once write that its brokers do not know, as `FIRST-LAST`: the write continues after "
        "them. The error about them names the value.",
    )
    gone_brokers: frozenset[int] | None = option(
        "goneBrokers", values.broker_ids, UNSET, WRITE,
        "Broker ids, separated by commas, of brokers that took part in an exactly-once write and are gone for good; "
        "the error about one names it.",
    )
    # fmt: on
    checkpoint_location: str | None
    """The option ``checkpointLocation``, if the stream has it."""

    @property
    def exactly_once(self) -> bool:
        """Whether the write is a transaction."""
        return self.delivery == "exactly_once"


def checkpoint_location(raw: Mapping[str, str]) -> str | None:
    """Return a stream's checkpoint folder if its own option names it, not Spark's configuration."""
    return next((value for key, value in raw.items() if key.lower() == CHECKPOINT_LOCATION), None)


def check_write(options: TransactionOptions) -> None:
    """Refuse an incomplete or useless name of a write, and unusable TLS options.

    Raises:
        OptionError: Options contradict each other.
    """
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise OptionError("txnAppId, txnVersion", "they are given together or not at all")
    if options.txn_app_id is not None and not options.exactly_once:
        raise OptionError("txnAppId", "it has no effect without delivery = exactly_once; give that as well")
    check_tls(options)


def check_choice(values: Mapping[str, Any]) -> None:
    """Check that exactly one option selects what to read.

    Raises:
        OptionError: There is none, or more than one.
    """
    names = {"topics": "subscribe", "topic_pattern": "subscribePattern", "assigned": "assign"}
    given = [name for field, name in names.items() if values[field] is not None]
    if not given:
        raise OptionError("subscribe", "it is required, or instead of it subscribePattern or assign: what to read")
    if len(given) > 1:
        raise OptionError(", ".join(given), "only one of them can say what to read")


def _check_positions(options: ReadOptions, use: Use) -> None:
    """Refuse positions with which a read would read nothing."""
    if use is Use.BATCH_READ and isinstance(options.starting_offsets, Latest):
        raise OptionError("startingOffsets", "a batch read cannot start at latest, it would read nothing; use earliest")
    if isinstance(options.ending_offsets, Earliest | Group):
        raise OptionError("endingOffsets", "a read cannot end at earliest or at a group's offsets; use latest")


def check_read(options: ReadOptions, use: Use) -> None:
    """Refuse options that contradict each other, need another one, or with which a read would read nothing.

    Raises:
        OptionError: There are such options.
    """
    _check_positions(options, use)
    check_value(options.value_format, options.value_schema, options.json_mode, options.corrupt_field)
    least, most = options.trigger_messages_min, options.trigger_messages_max
    if least is not None and most is not None and least > most:
        raise OptionError("minOffsetsPerTrigger", f"{least} is above maxOffsetsPerTrigger, which is {most}")
    for present, name, needed, there in (
        (options.dead_letter_topic is not None, "deadLetterTopic", "onCorrupt = deadletter", options.dead_letters),
        (options.dead_letters, "onCorrupt", "deadLetterTopic", options.dead_letter_topic is not None),
        (isinstance(options.start, Group), "startingOffsets", "group", options.group is not None),
        (options.commit_group_offsets, "commitGroupOffsets", "group", options.group is not None),
    ):
        if present and not there:
            raise OptionError(name, f"it has no effect without {needed}; give that as well")
    check_tls(options)


def check_value(value_format: str, value_schema: DataType | None, mode: str, corrupt_field: str | None) -> None:
    """Check that a type is given for JSON, and what belongs to it only for JSON.

    Raises:
        OptionError: One of them is given without the other, or the type does not have the corrupt field.
    """
    for name, given in (
        ("valueSchema", value_schema is not None),
        ("mode", mode != PERMISSIVE),
        ("columnNameOfCorruptRecord", corrupt_field is not None),
    ):
        if given and value_format != "json":
            raise OptionError(name, "it has no effect without valueFormat = json; give that as well")
    if value_schema is None and value_format == "json":
        raise OptionError("valueFormat", "json has no effect without valueSchema; give that as well")
    try:
        found = json_rules(mode, corrupt_field).field_of(value_schema)
    except ValueError as error:
        raise OptionError("valueSchema", str(error)) from None
    if corrupt_field is not None and found is None:
        raise OptionError("columnNameOfCorruptRecord", f"valueSchema has no field {corrupt_field}; add it, as STRING")


def json_rules(mode: str, corrupt_field: str | None) -> JsonRules:
    """Return what the options ``mode`` and ``columnNameOfCorruptRecord`` say."""
    return JsonRules(mode) if corrupt_field is None else JsonRules(mode, corrupt_field)


def check_tls(options: ConnectionOptions) -> None:
    """Refuse TLS options without effect, and unusable files.

    Raises:
        OptionError: There is such an option.
    """
    unchecked = options.tls_verify == "none"
    if unchecked and options.tls_ca_file is not None:
        raise OptionError("tlsCaFile", "it has no effect with tlsVerify = none; give one of them")
    for name, given, needed, there in (
        ("tlsVerify", options.tls_verify == "ca", "tlsCaFile", options.tls_ca_file is not None),
        ("tlsCertFile", options.tls_cert_file is not None, "tlsCaFile", unchecked or options.tls_ca_file is not None),
        ("tlsKeyFile", options.tls_key_file is not None, "tlsCertFile", options.tls_cert_file is not None),
    ):
        if given and not there:
            raise OptionError(name, f"it has no effect without {needed}; give that as well")
    try:
        if options.tls is not None:
            options.tls.context()
    except ValueError as error:
        raise OptionError("tlsCaFile, tlsCertFile, tlsKeyFile", str(error)) from None
