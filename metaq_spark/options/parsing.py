"""The options of ``format("metaq")`` as the frozen objects that the rest of the connector works with.

Nothing else reads the raw options, which Spark hands over as text under lower-cased keys. ``option_table`` says of each
how it is read; here they are put together, and checked against each other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import BinaryType, DataType, StringType

from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.model import Address, Partition
from metaq.net.retry import RetryPolicy
from metaq.net.tls import TlsSettings
from metaq.net.transport import Timeouts
from metaq_spark.errors import OptionError
from metaq_spark.options.positions import Earliest, Group, Latest, Position, Timestamps
from metaq_spark.options.selection import Assigned, Matching, Named, Selection
from metaq_spark.options.table import (
    ANY,
    HABITS,
    OPTIONS,
    READ,
    SET_BY_SPARK,
    SYSTEM_CA,
    UNSET,
    WRITE,
    Option,
    Use,
)
from metaq_spark.source.row_layout import ATTRIBUTE_MAP, COLUMN_TYPES, RowLayout

_USUAL: Final = (
    "brokers", "zookeeper", "subscribe", "startingOffsets", "endingOffsets", "maxBytesPerTrigger", "topic", "delivery"
)  # fmt: skip

_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How to reach the brokers. Times in milliseconds. ``brokers`` is empty where they are found by ``zookeeper``."""

    brokers: tuple[Address, ...]
    zookeeper: ZooKeeperAddress | None
    connect_timeout_ms: int
    request_timeout_ms: int
    retries: int
    retry_interval_ms: int
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """What the user named, as text: the brokers, or where ZooKeeper has them."""
        return tuple(map(str, self.brokers)) if self.zookeeper is None else (str(self.zookeeper),)

    @property
    def tls(self) -> TlsSettings | None:
        """How connections are secured, ``None`` if they are not."""
        if self.tls_ca_file is None:
            return None
        ca_file = None if self.tls_ca_file == SYSTEM_CA else self.tls_ca_file
        return TlsSettings(ca_file, self.tls_cert_file, self.tls_key_file)

    @property
    def retry_policy(self) -> RetryPolicy:
        """How often something is asked or sent again, and after which pauses."""
        return RetryPolicy(self.retries, self.retry_interval_ms / 1000)

    @property
    def timeouts(self) -> Timeouts:
        """The deadlines of a connection."""
        return Timeouts(self.connect_timeout_ms / 1000, self.request_timeout_ms / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(BrokerOptions):
    """A read, batch or streaming. Options of the other kind of read hold their defaults and go unused.

    Sizes in bytes, times in milliseconds, counts in messages or tasks, as the names end; ``None`` = not given.
    """

    topics: tuple[str, ...] | None
    topic_pattern: re.Pattern[str] | None
    assigned: Mapping[str, frozenset[Partition]] | None
    wait_for_topic: bool
    starting_offsets: Position
    starting_timestamp_ms: int | None
    starting_timestamps: Timestamps | None
    no_message_strategy: str
    ending_offsets: Position
    ending_timestamp_ms: int | None
    ending_timestamps: Timestamps | None
    trigger_bytes_max: int
    trigger_messages_max: int | None
    trigger_messages_min: int | None
    trigger_delay_ms_max: int
    task_count_min: int | None
    task_bytes_min: int
    task_bytes_max: int | None
    columns: tuple[str, ...] | None
    message_types: tuple[str, ...] | None
    push_filters: bool
    value_format: str
    value_schema: DataType | None
    attribute_format: str
    fail_on_data_loss: bool
    loss_grace_ms: int
    broker_wait_ms: int
    on_corrupt: str
    dead_letter_topic: str | None
    group: str | None
    commit_group_offsets: bool
    fetch_bytes: int
    local_reads: bool
    offset_poll_ms: int

    @property
    def dead_letters(self) -> bool:
        """Whether damaged messages are set aside."""
        return self.on_corrupt == "deadletter"

    @property
    def row_layout(self) -> RowLayout:
        """The columns of the read."""
        return _row_layout(self.columns, self.value_format, self.value_schema, self.attribute_format)

    @property
    def selection(self) -> Selection:
        """What to read."""
        if self.topics is not None:
            return Named(self.topics)
        return Matching(self.topic_pattern) if self.topic_pattern is not None else Assigned(self.assigned or {})

    @property
    def start(self) -> Position:
        """Where to start: times go before offsets."""
        return _position(self.starting_timestamp_ms, self.starting_timestamps, self.starting_offsets)

    @property
    def end(self) -> Position:
        """Where a batch stops: times go before offsets."""
        return _position(self.ending_timestamp_ms, self.ending_timestamps, self.ending_offsets)

    @property
    def start_option(self) -> str:
        """The option that ``start`` comes from."""
        return _position_option("starting", self.starting_timestamp_ms, self.starting_timestamps)

    @property
    def end_option(self) -> str:
        """The option that ``end`` comes from."""
        return _position_option("ending", self.ending_timestamp_ms, self.ending_timestamps)


def _row_layout(
    columns: tuple[str, ...] | None, value_format: str, value_schema: DataType | None, attribute_format: str
) -> RowLayout:
    value_type = value_schema or (StringType() if value_format == "string" else BinaryType())
    attribute_type = ATTRIBUTE_MAP if attribute_format == "map" else StringType()
    return RowLayout(columns or tuple(COLUMN_TYPES), attribute_type, value_type)


def _position(of_all_ms: int | None, of_each: Timestamps | None, otherwise: Position) -> Position:
    return Timestamps(of_all_ms) if of_all_ms is not None else of_each or otherwise


def _position_option(side: str, of_all_ms: int | None, of_each: Timestamps | None) -> str:
    if of_all_ms is not None:
        return f"{side}Timestamp"
    return f"{side}OffsetsByTimestamp" if of_each else f"{side}Offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(BrokerOptions):
    """A write. ``topic`` is ``None`` when every row names its own; other ``None`` = not given."""

    topic: str | None
    delivery: str
    transaction_timeout_ms: int
    txn_app_id: str | None
    txn_version: int | None
    repeated_batch: str
    ordered_partitions: tuple[Partition, ...] | None
    block_bytes: int
    block_messages: int

    @property
    def exactly_once(self) -> bool:
        """Whether the write is a transaction."""
        return self.delivery == "exactly_once"


def check_source_options(raw: Mapping[str, str]) -> RowLayout:
    """Check what can be said before it is known whether the read is a batch or a stream; the columns that it has.

    Raises:
        OptionError: An option is unknown, is for writing, is missing or cannot be read.
    """
    _refuse_unknown(raw, READ)
    values = _read_all(_allowed(READ), raw, Use.BATCH_READ)
    _check_choice(values)
    chosen = [values[field] for field in ("columns", "value_format", "value_schema", "attribute_format")]
    _check_value(*chosen[1:3])
    return _row_layout(*chosen)


def parse_source_options(raw: Mapping[str, str], use: Use) -> SourceOptions:
    """The options of a batch read or a streaming read.

    Raises:
        OptionError: An option is unknown, is not for this use, is missing or cannot be read, or contradicts another.
    """
    _refuse_unknown(raw, frozenset({use}))
    values = _read_all(_allowed(READ), raw, use)
    _check_choice(values)
    options = SourceOptions(**values)
    if use is Use.BATCH_READ and isinstance(options.starting_offsets, Latest):
        raise OptionError("startingOffsets", "a batch read cannot start at latest, it would read nothing; use earliest")
    if isinstance(options.ending_offsets, Earliest | Group):
        raise OptionError("endingOffsets", "a read cannot end at earliest or at a group's offsets; use latest")
    _check_source(options)
    _check_tls(options)
    return options


def parse_sink_options(raw: Mapping[str, str], use: Use) -> SinkOptions:
    """The options of a batch write or a streaming write.

    Raises:
        OptionError: An option is unknown, is not for this use, is missing or cannot be read, or contradicts another.
    """
    _refuse_unknown(raw, frozenset({use}))
    options = SinkOptions(**_read_all(_allowed(WRITE), raw, use))
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise OptionError("txnAppId, txnVersion", "they are given together or not at all")
    if options.txn_app_id is not None and not options.exactly_once:
        raise OptionError("txnAppId", "it has no effect without delivery = exactly_once; give that as well")
    _check_tls(options)
    return options


def parse_broker_options(raw: Mapping[str, str]) -> BrokerOptions:
    """The options that say how to reach the brokers, for what is neither a read nor a write.

    Raises:
        OptionError: An option is unknown, is for a read or a write, is missing or cannot be read.
    """
    allowed = [option for option in OPTIONS if option.uses == ANY]
    names = [option.name for option in allowed]
    for key in raw:
        if key.lower() not in [name.lower() for name in names]:
            raise OptionError(key, f"it says nothing about how to reach the brokers. Allowed here: {', '.join(names)}")
    options = BrokerOptions(**_read_all(allowed, raw, Use.BATCH_READ))
    _check_tls(options)
    return options


def _check_choice(values: Mapping[str, Any]) -> None:
    """Of the options that choose what to read, there must be one."""
    names = {"topics": "subscribe", "topic_pattern": "subscribePattern", "assigned": "assign"}
    given = [name for field, name in names.items() if values[field] is not None]
    if not given:
        raise OptionError("subscribe", "it is required, or instead of it subscribePattern or assign: what to read")
    if len(given) > 1:
        raise OptionError(", ".join(given), "only one of them can say what to read")


def _check_source(options: SourceOptions) -> None:
    """Refuse options that contradict each other, or that another one lacks."""
    _check_value(options.value_format, options.value_schema)
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


def _check_value(value_format: str, value_schema: DataType | None) -> None:
    """JSON needs a type, and nothing else takes one."""
    if value_schema is not None and value_format != "json":
        raise OptionError("valueSchema", "it has no effect without valueFormat = json; give that as well")
    if value_schema is None and value_format == "json":
        raise OptionError("valueFormat", "json has no effect without valueSchema; give that as well")


def _check_tls(options: BrokerOptions) -> None:
    """Refuse TLS files that do nothing, and those that cannot be used."""
    for name, given, needed, there in (
        ("tlsCertFile", options.tls_cert_file, "tlsCaFile", options.tls_ca_file),
        ("tlsKeyFile", options.tls_key_file, "tlsCertFile", options.tls_cert_file),
    ):
        if given is not None and there is None:
            raise OptionError(name, f"it has no effect without {needed}; give that as well")
    try:
        if options.tls is not None:
            options.tls.context()
    except ValueError as error:
        raise OptionError("tlsCaFile, tlsCertFile, tlsKeyFile", str(error)) from None


def _allowed(uses: frozenset[Use]) -> list[Option]:
    return [option for option in OPTIONS if option.uses & uses]


def _refuse_unknown(raw: Mapping[str, str], uses: frozenset[Use]) -> None:
    for key in raw:
        option = _BY_KEY.get(key.lower())
        if option is None and key.lower() not in SET_BY_SPARK:
            raise OptionError(key, _unknown(key, uses))
        if option is not None and not option.uses & uses:
            raise OptionError(option.name, _misplaced(option, uses))


def _unknown(key: str, uses: frozenset[Use]) -> str:
    if (instead := _instead(key.lower(), uses)) is not None:
        return instead
    allowed = {option.name.lower(): option.name for option in _allowed(uses)}
    near = [allowed[name] for name in difflib.get_close_matches(key.lower(), allowed, n=3)]
    hint = f"there is no such option; did you mean {' or '.join(near)}?" if near else "there is no such option."
    usual = [name for name in _USUAL if name.lower() in allowed and name not in near]
    return f"{hint} The usual ones of a {_wording(uses)}: {', '.join([*near, *usual])}; docs/connector.md has all"


def _instead(key: str, uses: frozenset[Use]) -> str | None:
    """What to use instead of a key that other connectors have, or that this one had."""
    found = HABITS.get(key)
    if found is None:
        return None
    reading, writing = (found, found) if isinstance(found, str) else found
    return writing if uses <= WRITE else reading


def _misplaced(option: Option, uses: frozenset[Use]) -> str:
    instead = _instead(option.name.lower(), uses)
    where = f"it is for a {_wording(option.uses)}, not for a {_wording(uses)}"
    return where if instead is None else f"{where}; {instead}"


def _wording(uses: Iterable[Use]) -> str:
    return " or a ".join(use.value for use in Use if use in uses)


def _read_all(options: Iterable[Option], raw: Mapping[str, str], use: Use) -> dict[str, Any]:
    """The value of each option by its field. There must be one way to the brokers."""
    values = {option.field: _read(option, raw, use) for option in options}
    if values["brokers"] is None and values["zookeeper"] is None:
        raise OptionError("brokers", "it is required, or instead of it zookeeper: where the brokers are" + _in_sql(raw))
    if values["brokers"] is not None and values["zookeeper"] is not None:
        raise OptionError("brokers, zookeeper", "only one of them can say where the brokers are")
    return values | {"brokers": values["brokers"] or ()}


def _in_sql(raw: Mapping[str, str]) -> str:
    """What an INSERT INTO a table meets: Spark gives the options of a table to nobody, so there are none at all."""
    advice = "; in SQL, INSERT INTO a temporary view with columns and OPTIONS, or INSERT INTO ... WITH (...) options"
    return "" if raw else advice


def _read(option: Option, raw: Mapping[str, str], use: Use) -> Any:
    text = next((value for key, value in raw.items() if key.lower() == option.name.lower()), None)
    if text is None and option.default == UNSET:
        return None
    try:
        return option.parse(option.default_for(use) if text is None else text)
    except ValueError as error:
        raise OptionError(option.name, f"{text!r}: {error}") from None
