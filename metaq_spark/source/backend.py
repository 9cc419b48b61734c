"""The interface of a source backend: the protocols that a queue system implements, and their values.

Planning, limits, splits, the loss policy and the readers depend on nothing else of MetaQ or RocketMQ. They do not
depend on the meaning of an offset or on how bytes are fetched:

=====================  ==============================================  ============================================
                       MetaQ                                           RocketMQ
=====================  ==============================================  ============================================
an offset              byte position of a message's first byte         number of a message in its queue
length of a range      bytes                                           messages
bytes of a range       its length                                      its length times a mean message size
where messages begin   at boundaries, which brokers look up            everywhere
=====================  ==============================================  ============================================

Requests cover many partitions at once: a driver that plans for a thousand partitions cannot afford a round trip for
each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from metaq.errors import MetaqError
from metaq.model import OffsetRange, TopicPartition
from metaq.net.clock import Clock
from metaq_spark.offsets import AvailableRanges, Offsets, Ranges
from metaq_spark.options.parsing import ReadOptions
from metaq_spark.options.positions import Notation
from metaq_spark.options.selection import Selection

MessageStart = tuple[TopicPartition, int]
"""An offset of a partition."""


class Cuts(NamedTuple):
    """Ascending ``offsets`` to bring down to message boundaries; ``floor`` is a boundary at or below all of them."""

    floor: int
    offsets: Sequence[int]


class SkipAhead(NamedTuple):
    """Up to ``messages_max`` (>= 1) messages from the start of ``span``, but none that begins at its end or later.

    ``span`` is not empty and begins at a boundary.
    """

    span: OffsetRange
    messages_max: int


class Skipped(NamedTuple):
    """The boundary after so many ``messages``: at least one, and above the start of the span."""

    offset: int
    messages: int


class Boundaries(Protocol):
    """Looks up message boundaries and sizes of ranges.

    Results refer to the current log: if retention has deleted the offset, they are at the log start.
    """

    def bytes_per_offset(self, ranges: Ranges) -> Mapping[TopicPartition, float]:
        """Return the bytes per offset in each of ``ranges``: 1, or the mean size of messages.

        Equal ranges get equal results, so that a batch that is planned again is cut the same way.
        """

    def boundaries(self, asked: Mapping[TopicPartition, Cuts]) -> dict[TopicPartition, list[int]]:
        """For each offset the last boundary at or below it."""

    def message_ends(self, starts: Collection[MessageStart]) -> dict[MessageStart, int]:
        """The boundary after the message that starts at each place."""


class MessageCounts(Protocol):
    """Counts the messages between two offsets."""

    @property
    def offsets_per_message_min(self) -> int:
        """The least distance between two messages."""

    def skip(self, asked: Mapping[TopicPartition, SkipAhead]) -> dict[TopicPartition, Skipped]:
        """Where so many messages end, and how many there really are."""


class Positions(Boundaries, MessageCounts, Protocol):
    """Finds message boundaries, counts messages, and finds the first message of a time."""

    def first_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offset of the first message at or after each time (since 1970), else the readable end.

        Raises:
            ExtensionMissing: A broker stores no times.
        """


class DensePositions:
    """``Positions`` for dense offsets, without sizes and times. Asks no broker."""

    offsets_per_message_min = 1

    def boundaries(self, asked: Mapping[TopicPartition, Cuts]) -> dict[TopicPartition, list[int]]:
        return {where: [max(cuts.floor, offset) for offset in cuts.offsets] for where, cuts in asked.items()}

    def message_ends(self, starts: Collection[MessageStart]) -> dict[MessageStart, int]:
        return {(where, offset): offset + 1 for where, offset in starts}

    def skip(self, asked: Mapping[TopicPartition, SkipAhead]) -> dict[TopicPartition, Skipped]:
        counts = {where: min(len(skip.span), skip.messages_max) for where, skip in asked.items()}
        return {where: Skipped(asked[where].span.start + count, count) for where, count in counts.items()}


class LastMessages(Protocol):
    """Identifies the message before an offset, so that a query can check that it continues in the same log.

    The id is 32 hexadecimal digits that no other message at this offset has.
    """

    def before(self, spans: Ranges) -> dict[TopicPartition, str]:
        """Return the message before the end of each span, as far as it can be determined.

        A span is not empty and begins at a boundary.

        Raises:
            MetaqError: A broker could not be asked.
        """

    def differing(self, asked: Mapping[TopicPartition, tuple[int, str]]) -> set[TopicPartition]:
        """Return the partitions in which another message is before an offset, or none ends there.

        A deleted or unreadable message proves nothing. Raises as ``before``.
        """

    def stored_ms(self, message: str) -> int | None:
        """Return the store time (since 1970); ``None`` if it is unknown, or not comparable in
        ``Positions.first_at``.
        """


class Cluster(Protocol):
    """The brokers together, as a driver asks them. Requests are retried as the options say."""

    @property
    def positions(self) -> Positions:
        """Lookups of offsets."""

    @property
    def last_messages(self) -> LastMessages:
        """Lookups of messages before offsets."""

    @property
    def connections(self) -> int:
        """How many connections this process has opened; while it is the same, no broker was restarted."""

    def available(self, selection: Selection) -> AvailableRanges:
        """Return the readable range of every selected partition; the same object while nothing has changed.

        Raises:
            MetaqError: A broker could not be asked.
        """

    def available_now(self, selection: Selection) -> tuple[AvailableRanges, Mapping[str, MetaqError]]:
        """Return ``available`` from brokers that answer without retries, and the errors of the others by name."""

    def require_there(self, option: str, partitions: Collection[TopicPartition]) -> None:
        """Check that the partitions named in ``option`` exist, as far as the system knows empty ones.

        Raises:
            MetaqError: The broker of one is not found, or it has no such partition.
        """

    def require_brokers(self, option: str, names: Collection[str], selection: Selection) -> None:
        """Check that the brokers that ``option`` names are found, and can have something of ``selection``.

        Raises:
            MetaqError: One is not.
        """

    def broker_of(self, where: TopicPartition) -> str | None:
        """The name of the broker that served a partition before, if one did; no request is sent."""

    def listed_whole(self) -> Collection[str]:
        """Return the names of brokers that have listed every partition with messages: later ones there are new. Empty
        for a system in which partitions can be hidden temporarily.

        Raises:
            MetaqError: A broker could not be asked.
        """

    def expect(self, partitions: Collection[TopicPartition]) -> None:
        """Add partitions that the query reads, in case no server lists them now."""

    @property
    def missed(self) -> Mapping[str, MetaqError]:
        """Brokers of expected partitions that are not listed any more and did not answer last time, with
        their errors.
        """


class CommittedOffsets(Protocol):
    """The offsets of consumer groups. Like Spark's, each is the first one not yet read."""

    def positions(self, group: str, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the group's positions in ``partitions``; partitions that it has never read are left out.

        ``EARLIEST_OFFSET`` and ``LATEST_OFFSET`` mean the ends of a partition.
        """

    def commit(self, group: str, offsets: Offsets) -> None:
        """Record that ``group`` has read everything before ``offsets``. Other partitions are not changed."""


@dataclass(frozen=True, slots=True)
class LossSentences:
    """Sentences about lost messages and remedies, in the system's terms.

    ``put_back`` is followed by how to move the query. Each follows "PARTITION: " or "PARTITION: offset N was to be read
    next, but the broker holds [A, B)".
    """

    not_listed: str
    made_again: str
    end_lost: str
    removed: str
    put_back: str


@dataclass(frozen=True, slots=True)
class PushedColumns:
    """Columns by which a filter can narrow a read.

    ``constants``: columns with one value in a whole partition, with the type for comparisons. ``types``: the column
    with the type (tag) of a message, by which brokers filter.
    """

    constants: Mapping[str, tuple[Callable[[TopicPartition], Any], type]]
    offset: str
    timestamp: str
    types: str | None
    is_type: Callable[[str], bool]


class Source(Protocol):
    """A queue system as one reader uses it. Pickled with the reader; opens no connection before the first request."""

    @property
    def options(self) -> ReadOptions:
        """The options of the read."""

    @property
    def clock(self) -> Clock:
        """The clock of the read."""

    @property
    def notation(self) -> Notation:
        """How partitions are written, in options and in checkpoints."""

    @property
    def sentences(self) -> LossSentences:
        """The sentences about a data loss."""

    @property
    def pushed_columns(self) -> PushedColumns:
        """Return the columns for the option ``pushFilters``; called only if the format has it."""

    # ---- lookup, on the driver

    @property
    def cluster(self) -> Cluster:
        """The brokers; always the same object."""

    @property
    def groups(self) -> CommittedOffsets | None:
        """Where consumer groups are kept, if the options have to do with one."""

    def check(self, *, streaming: bool, read: Collection[str] = ()) -> None:
        """Check that brokers know the topics and partitions in the options. A stream may name empty topics, and topics
        that it has ``read`` before are waited for.

        Raises:
            MetaqError: There is no such topic, or no such partition, or a broker could not be asked.
        """

    def report_unlisted(self, available: AvailableRanges, *, streaming: bool) -> None:
        """Fail or warn about partitions that may have messages and are not in ``available``.

        Raises:
            DataLoss: The read must not continue without one.
        """

    def is_data_loss(self, error: MetaqError) -> bool:
        """Whether an error means a missing partition or offset."""

    # ---- plan, on the driver

    def part(self, where: TopicPartition, offsets: OffsetRange, incarnation: str | None) -> InputPartition:
        """Return everything that a task needs to read a range, including the broker. The value is hashable.

        Raises:
            BrokerNotNamed: Its broker is unknown.
        """

    def wants_type(self, name: str) -> bool:
        """Whether the options ask for messages of this type."""

    def with_types(self, types: tuple[str, ...]) -> Source:
        """The same read, of messages of these types alone."""

    # ---- fetch, in the tasks

    def read(self, parts: Sequence[InputPartition]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges, in order, as batches of the selected columns.

        Raises:
            DataLoss: Messages of a range are deleted and the option ``failOnDataLoss`` is true.
            CorruptFrame: A message is damaged and the option ``onCorrupt`` is ``fail``.
            ReadFailed: The broker could not be asked, even after retries, or refused.
        """
