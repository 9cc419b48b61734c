"""Options as the frozen objects that the connector works with, for every format.

Nothing else reads the raw options, which Spark hands over as text under lower-cased keys. A format's ``OptionTable``
says of each how it is read; the classes here have what all formats share, and are checked for contradictions.
"""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.types import DataType

from metaq.errors import DeadlineExceeded, MetaqError
from metaq.model import Partition
from metaq.net.retry import RetryPolicy
from metaq.net.tls import TlsSettings
from metaq.net.transport import Timeouts
from metaq_spark.columns.row_layout import RowLayout
from metaq_spark.errors import OptionError
from metaq_spark.options.positions import Earliest, Group, Latest, Position, Timestamps
from metaq_spark.options.selection import Assigned, Named, Selection, TopicPattern
from metaq_spark.options.table import (
    ANY,
    CHECKPOINT_LOCATION,
    READ,
    SET_BY_SPARK,
    SYSTEM_CA,
    TLS_VERIFY,
    UNSET,
    WRITE,
    Option,
    Use,
)

Habits = Mapping[str, str | tuple[str, str]]
"""Keys that other connectors have, in lower case: what to use instead; for reads and for writes where that differs."""

SHARED_HABITS: Final[Habits] = {
    "topics": ("use subscribe: topics, separated by commas", "use topic: one topic, or a column topic for more"),
    "subscribe": ("use subscribe", "use topic: one topic, or a column topic for more"),
    "path": ("a topic has no path; use subscribe: topics, separated by commas", "a topic has no path; use topic"),
    "checkpoint": "use checkpointLocation",
    "group.id": "use group",
    "groupid": "use group",
    "consumergroup": "use group",
    "mode": ("leave it out: a read has no mode", 'use .mode("append") or .outputMode("append")'),
}
"""Those that no format has."""


class OptionTable:
    """The options of one format.

    ``habits``: what to use instead of keys that this format does not have. ``usual``: the names that a message about an
    unknown option suggests. ``page``: the documentation that has them all.
    """

    def __init__(self, rows: Iterable[Option], habits: Habits, usual: Iterable[str], page: str) -> None:
        self.rows: Final = tuple(rows)
        self._habits, self._usual, self._page = habits, tuple(usual), page
        self._by_key = {option.name.lower(): option for option in self.rows}

    def read(self, raw: Mapping[str, str], use: Use, uses: frozenset[Use] | None = None) -> dict[str, Any]:
        """The value of each option for ``use`` by its field.

        ``uses``: for what the options may be given, ``use`` alone unless that is not known yet.

        Raises:
            OptionError: An option is unknown, is not for this use, or cannot be read.
        """
        self._refuse_unknown(raw, uses or frozenset({use}))
        kind = READ if use in READ else WRITE
        return read_values((option for option in self.rows if option.uses & kind), raw, use)

    def _refuse_unknown(self, raw: Mapping[str, str], uses: frozenset[Use]) -> None:
        for key in raw:
            option = self._by_key.get(key.lower())
            if option is None and key.lower() not in SET_BY_SPARK:
                raise OptionError(key, self._unknown(key, uses))
            if option is not None and not option.uses & uses:
                raise OptionError(option.name, self._misplaced(option, uses))

    def _unknown(self, key: str, uses: frozenset[Use]) -> str:
        if (instead := self._instead(key.lower(), uses)) is not None:
            return instead
        allowed = {option.name.lower(): option.name for option in self.rows if option.uses & uses}
        near = [allowed[name] for name in difflib.get_close_matches(key.lower(), allowed, n=3)]
        hint = f"there is no such option; did you mean {' or '.join(near)}?" if near else "there is no such option."
        usual = [name for name in self._usual if name.lower() in allowed and name not in near]
        return f"{hint} The usual ones of a {_wording(uses)}: {', '.join([*near, *usual])}; {self._page} has all"

    def _instead(self, key: str, uses: frozenset[Use]) -> str | None:
        found = self._habits.get(key)
        if found is None:
            return None
        reading, writing = (found, found) if isinstance(found, str) else found
        return writing if uses <= WRITE else reading

    def _misplaced(self, option: Option, uses: frozenset[Use]) -> str:
        instead = self._instead(option.name.lower(), uses)
        where = f"it is for a {_wording(option.uses)}, not for a {_wording(uses)}"
        return where if instead is None else f"{where}; {instead}"


def read_values(options: Iterable[Option], raw: Mapping[str, str], use: Use) -> dict[str, Any]:
    """The value of each of ``options`` by its field; other keys are not looked at.

    Raises:
        OptionError: One cannot be read.
    """
    return {option.field: _read(option, raw, use) for option in options}


def read_reach(options: Iterable[Option], raw: Mapping[str, str], whom: str) -> dict[str, Any]:
    """The values of those ``options`` that say how to reach ``whom`` ("brokers"), for neither a read nor a write.

    Raises:
        OptionError: A key is none of them, or one cannot be read.
    """
    allowed = [option for option in options if option.uses == ANY]
    names = [option.name for option in allowed]
    for key in raw:
        if key.lower() not in [name.lower() for name in names]:
            raise OptionError(key, f"it says nothing about how to reach the {whom}. Allowed here: {', '.join(names)}")
    return read_values(allowed, raw, Use.BATCH_READ)


def _read(option: Option, raw: Mapping[str, str], use: Use) -> Any:
    text = next((value for key, value in raw.items() if key.lower() == option.name.lower()), None)
    if text is None and option.default == UNSET:
        return None
    try:
        return option.parse(option.default_for(use) if text is None else text)
    except ValueError as error:
        raise OptionError(option.name, f"{text!r}: {error}") from None


def _wording(uses: Iterable[Use]) -> str:
    return " or a ".join(use.value for use in Use if use in uses)


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions(ABC):
    """How connections are made. Times in milliseconds. A format adds where its brokers are."""

    streaming: bool = False

    connect_timeout_ms: int
    request_timeout_ms: int
    retries: int
    retry_interval_ms: int
    broker_wait_ms: int
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_verify: str = TLS_VERIFY[0]

    @property
    def tls(self) -> TlsSettings | None:
        """How connections are secured, ``None`` if they are not."""
        verify = self.tls_verify != "none"
        if self.tls_ca_file is None and verify:
            return None
        ca_file = None if self.tls_ca_file == SYSTEM_CA else self.tls_ca_file
        full = self.tls_verify == "full"
        return TlsSettings(ca_file, self.tls_cert_file, self.tls_key_file, check_hostname=full, verify=verify)

    @property
    def retry_policy(self) -> RetryPolicy:
        """How often something is asked or sent again, and after which pauses, without a wait."""
        return RetryPolicy(self.retries, self.retry_interval_ms / 1000)

    @property
    def waiting_policy(self) -> RetryPolicy:
        """The same for work under way, which a broker's restart must not end."""
        return replace(self.retry_policy, wait_s=self.broker_wait_ms / 1000)

    @property
    def first_policy(self) -> RetryPolicy:
        """The same for what is done first: there a stream does not wait, as a wrong option would look like a restart.

        A batch waits if the option says so, which it does not by default.
        """
        return self.retry_policy if self.streaming else self.waiting_policy

    @property
    @abstractmethod
    def found_by(self) -> str:
        """Where the options say that the brokers are, for messages."""

    def advice_after(self, error: MetaqError, otherwise: str) -> str:
        """What may help when every attempt failed, the last one with ``error``; ``otherwise`` for what was answered."""
        if not error.away:
            return otherwise
        tried = f"It was tried {self.retries + 1} times in a row"
        if self.broker_wait_ms:
            tried += f", and waited for up to {self.broker_wait_ms / 1000:g} s (brokerWaitMs)"
        tried += f"; brokers are found by {self.found_by}"
        if isinstance(error, DeadlineExceeded):
            return f"{tried}. If the broker is only slow, raise the option requestTimeoutMs ({self.request_timeout_ms})"
        return f"{tried}. Start the broker; if it takes longer to come back, raise the option brokerWaitMs"

    @property
    def timeouts(self) -> Timeouts:
        """The deadlines of a connection."""
        return Timeouts(self.connect_timeout_ms / 1000, self.request_timeout_ms / 1000)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(ConnectionOptions):
    """A read, batch or streaming. Options of the other kind of read hold their defaults and go unused.

    Sizes in bytes, times in milliseconds, counts in messages or tasks, as the names end; ``None`` = not given.
    """

    topics: tuple[str, ...] | None
    topic_pattern: re.Pattern[str] | None
    assigned: Mapping[str, frozenset[Partition]] | None
    wait_for_topic: bool
    required_brokers: tuple[str, ...] | None
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
    push_filters: bool
    value_format: str
    value_schema: DataType | None
    fail_on_data_loss: bool
    prove_offsets: bool
    loss_grace_ms: int
    on_corrupt: str
    dead_letter_topic: str | None
    group: str | None
    commit_group_offsets: bool
    fetch_bytes: int
    offset_poll_ms: int

    @property
    def dead_letters(self) -> bool:
        """Whether damaged messages are set aside."""
        return self.on_corrupt == "deadletter"

    @property
    @abstractmethod
    def row_layout(self) -> RowLayout:
        """The columns of the read."""

    @property
    def selection(self) -> Selection:
        """What to read."""
        if self.topics is not None:
            return Named(self.topics)
        return TopicPattern(self.topic_pattern) if self.topic_pattern is not None else Assigned(self.assigned or {})

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


def _position(of_all_ms: int | None, of_each: Timestamps | None, otherwise: Position) -> Position:
    return Timestamps(of_all_ms) if of_all_ms is not None else of_each or otherwise


def _position_option(side: str, of_all_ms: int | None, of_each: Timestamps | None) -> str:
    if of_all_ms is not None:
        return f"{side}Timestamp"
    return f"{side}OffsetsByTimestamp" if of_each else f"{side}Offsets"


@dataclass(frozen=True, kw_only=True)
class WriteOptions(ConnectionOptions):
    """A write. ``topic`` is ``None`` when every row names its own."""

    topic: str | None
    block_bytes: int
    block_messages: int


@dataclass(frozen=True, kw_only=True)
class TransactionOptions(WriteOptions):
    """A write that may be exactly once; ``None`` = not given."""

    delivery: str
    transaction_timeout_ms: int
    txn_app_id: str | None
    txn_version: int | None
    repeated_batch: str
    missing_batches: tuple[int, int] | None
    checkpoint_location: str | None
    """The option ``checkpointLocation``, if the stream has it."""

    @property
    def exactly_once(self) -> bool:
        """Whether the write is a transaction."""
        return self.delivery == "exactly_once"


def checkpoint_location(raw: Mapping[str, str]) -> str | None:
    """Where a stream has its checkpoint, if its own option says so and not Spark's configuration."""
    return next((value for key, value in raw.items() if key.lower() == CHECKPOINT_LOCATION), None)


def check_write(options: TransactionOptions) -> None:
    """Refuse half a name of a write, one that has no effect, and TLS that cannot be used.

    Raises:
        OptionError: The names of the options that do not belong together.
    """
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise OptionError("txnAppId, txnVersion", "they are given together or not at all")
    if options.txn_app_id is not None and not options.exactly_once:
        raise OptionError("txnAppId", "it has no effect without delivery = exactly_once; give that as well")
    check_tls(options)


def check_choice(values: Mapping[str, Any]) -> None:
    """Of the options that choose what to read, there must be one.

    Raises:
        OptionError: There is none, or there are several.
    """
    names = {"topics": "subscribe", "topic_pattern": "subscribePattern", "assigned": "assign"}
    given = [name for field, name in names.items() if values[field] is not None]
    if not given:
        raise OptionError("subscribe", "it is required, or instead of it subscribePattern or assign: what to read")
    if len(given) > 1:
        raise OptionError(", ".join(given), "only one of them can say what to read")


def _check_positions(options: ReadOptions, use: Use) -> None:
    """Refuse starts and ends with which a read would read nothing."""
    if use is Use.BATCH_READ and isinstance(options.starting_offsets, Latest):
        raise OptionError("startingOffsets", "a batch read cannot start at latest, it would read nothing; use earliest")
    if isinstance(options.ending_offsets, Earliest | Group):
        raise OptionError("endingOffsets", "a read cannot end at earliest or at a group's offsets; use latest")


def check_read(options: ReadOptions, use: Use) -> None:
    """Refuse options that contradict each other, that another one lacks, or with which a read would read nothing.

    Raises:
        OptionError: There are such options.
    """
    _check_positions(options, use)
    check_value(options.value_format, options.value_schema)
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


def check_value(value_format: str, value_schema: DataType | None) -> None:
    """JSON needs a type, and nothing else takes one.

    Raises:
        OptionError: One of them is given without the other.
    """
    if value_schema is not None and value_format != "json":
        raise OptionError("valueSchema", "it has no effect without valueFormat = json; give that as well")
    if value_schema is None and value_format == "json":
        raise OptionError("valueFormat", "json has no effect without valueSchema; give that as well")


def check_tls(options: ConnectionOptions) -> None:
    """Refuse TLS options that do nothing, and files that cannot be used.

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
