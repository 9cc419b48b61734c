"""What a read asks of a queue system: the protocols that a backend implements, and the values that they exchange.

Planning, limits, splits, the loss policy and the readers know nothing else about MetaQ or RocketMQ. They know neither
what an offset counts nor how bytes come:

=====================  ==============================================  ============================================
                       MetaQ                                           RocketMQ
=====================  ==============================================  ============================================
an offset              byte position of a message's first byte         number of a message in its queue
length of a range      bytes                                           messages
bytes of a range       its length                                      its length times a mean message size
where messages begin   at boundaries, which brokers look up            everywhere
=====================  ==============================================  ============================================

Questions are about many partitions at once: a driver that plans for a thousand partitions cannot afford a round trip
for each.
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


class Skip(NamedTuple):
    """Up to ``messages_max`` (>= 1) messages from the start of ``span``, but none that begins at its end or later.

    ``span`` is not empty and begins at a boundary.
    """

    span: OffsetRange
    messages_max: int


class Skipped(NamedTuple):
    """The boundary behind so many ``messages``: at least one, and above the start of the span."""

    offset: int
    messages: int


class Boundaries(Protocol):
    """Knows where messages begin, and how large ranges are.

    The answers are for the log as it is: where retention has removed what was asked about, they are at its start.
    """

    def bytes_per_offset(self, ranges: Ranges) -> Mapping[TopicPartition, float]:
        """How many bytes an offset stands for in each of ``ranges``: 1, or the mean size of messages.

        The same ranges get the same answer, so that a batch that is planned again is cut in the same way.
        """

    def boundaries(self, asked: Mapping[TopicPartition, Cuts]) -> dict[TopicPartition, list[int]]:
        """For each offset the last boundary at or below it."""

    def message_ends(self, starts: Collection[MessageStart]) -> dict[MessageStart, int]:
        """The boundary behind the message that starts at each place."""


class MessageCounts(Protocol):
    """Knows how many messages lie between two offsets."""

    @property
    def offsets_per_message_min(self) -> int:
        """The least distance between two messages."""

    def skip(self, asked: Mapping[TopicPartition, Skip]) -> dict[TopicPartition, Skipped]:
        """Where so many messages end, and how many there really are."""


class Positions(Boundaries, MessageCounts, Protocol):
    """Both, and times."""

    def first_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset of the first message at or after each time (since 1970); the readable end if there is none.

        Raises:
            ExtensionMissing: A broker keeps no times.
        """


class DensePositions:
    """``Positions`` where every offset is a message's, but for sizes and times. Nobody is asked."""

    offsets_per_message_min = 1

    def boundaries(self, asked: Mapping[TopicPartition, Cuts]) -> dict[TopicPartition, list[int]]:
        return {where: [max(cuts.floor, offset) for offset in cuts.offsets] for where, cuts in asked.items()}

    def message_ends(self, starts: Collection[MessageStart]) -> dict[MessageStart, int]:
        return {(where, offset): offset + 1 for where, offset in starts}

    def skip(self, asked: Mapping[TopicPartition, Skip]) -> dict[TopicPartition, Skipped]:
        counts = {where: min(len(skip.span), skip.messages_max) for where, skip in asked.items()}
        return {where: Skipped(asked[where].span.start + count, count) for where, count in counts.items()}


class LastMessages(Protocol):
    """Knows which message is before an offset, so that a query can prove that it goes on in the log that it has read.

    A message is 32 hexadecimal digits that no other message at that place has.
    """

    def before(self, spans: Ranges) -> dict[TopicPartition, str]:
        """The message before the end of each span; without those where that cannot be found out.

        A span is not empty and begins at a boundary.

        Raises:
            MetaqError: A broker could not be asked.
        """

    def differing(self, asked: Mapping[TopicPartition, tuple[int, str]]) -> set[TopicPartition]:
        """The partitions in which another message is before an offset, or none ends there.

        One that is not there any more, or cannot be looked at, proves nothing. Raises as ``before``.
        """

    def stored_ms(self, message: str) -> int | None:
        """When it was stored (since 1970); ``None`` if that is unknown, or means nothing to ``Positions.first_at``."""


class Cluster(Protocol):
    """The brokers together, as a driver asks them. Questions are repeated as the options ``retries`` say."""

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
        """What can be read now of every selected partition; the same object while nothing has changed.

        Raises:
            MetaqError: A broker could not be asked.
        """

    def available_now(self, selection: Selection) -> tuple[AvailableRanges, Mapping[str, MetaqError]]:
        """Like ``available``, of those brokers that answer at once; and why the others, by name, do not."""

    def require_there(self, option: str, partitions: Collection[TopicPartition]) -> None:
        """Check that partitions that ``option`` names are there, as far as the system knows those without messages.

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
        """The names of the brokers that have listed every partition that holds messages: what appears there later is
        new. A system in which partitions can be hidden for a time knows of none.

        Raises:
            MetaqError: A broker could not be asked.
        """

    def expect(self, partitions: Collection[TopicPartition]) -> None:
        """The query reads these: where partitions are listed by others than their brokers, they are asked for too."""

    @property
    def missed(self) -> Mapping[str, MetaqError]:
        """Brokers of such partitions that are listed no more and did not answer the last time, and why."""


class GroupOffsets(Protocol):
    """The offsets of consumer groups. Like Spark's, each is the first one not yet read."""

    def positions(self, group: str, partitions: Collection[TopicPartition]) -> Offsets:
        """Where ``group`` is in each of ``partitions``; those that it has never read are left out.

        ``EARLIEST_OFFSET`` and ``LATEST_OFFSET`` stand for the ends of a partition.
        """

    def commit(self, group: str, offsets: Offsets) -> None:
        """Note that ``group`` has read everything before ``offsets``. Others than those named stay as they are."""


@dataclass(frozen=True, slots=True)
class LossSentences:
    """Why messages that had to be read may be gone, and what helps, in the words of the system.

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
    """Columns that a filter can narrow a read by.

    ``constants``: those with one value in a whole partition, with the type that a condition compares them with.
    ``types``: the column with the type (tag) of a message, by which brokers pick messages.
    """

    constants: Mapping[str, tuple[Callable[[TopicPartition], Any], type]]
    offset: str
    timestamp: str
    types: str | None
    is_type: Callable[[str], bool]


class Source(Protocol):
    """A queue system as one reader sees it. Pickled with the reader; opens nothing before it is asked."""

    @property
    def options(self) -> ReadOptions:
        """The options of the read."""

    @property
    def clock(self) -> Clock:
        """Time, for everybody who reads."""

    @property
    def notation(self) -> Notation:
        """How partitions are written, in options and in checkpoints."""

    @property
    def sentences(self) -> LossSentences:
        """What a data loss is called."""

    @property
    def pushed_columns(self) -> PushedColumns:
        """What the option ``pushFilters`` can do; asked only if the format has it."""

    # ---- lookup, on the driver

    @property
    def cluster(self) -> Cluster:
        """The brokers; always the same object."""

    @property
    def groups(self) -> GroupOffsets | None:
        """Where consumer groups are kept, if the options have to do with one."""

    def check(self, *, streaming: bool, read: Collection[str] = ()) -> None:
        """Refuse what the options name and no broker knows. A stream may name what has no messages yet, and topics that
        it has ``read`` before are waited for.

        Raises:
            MetaqError: There is no such topic, or no such partition, or a broker could not be asked.
        """

    def report_unlisted(self, available: AvailableRanges, *, streaming: bool) -> None:
        """Fail, or warn, because of partitions that may have messages and are not in ``available``.

        Raises:
            DataLoss: The read must not go on without one.
        """

    def is_data_loss(self, error: MetaqError) -> bool:
        """Whether an error says that there is no such partition, or nothing at an offset."""

    # ---- plan, on the driver

    def part(self, where: TopicPartition, offsets: OffsetRange, incarnation: str | None) -> InputPartition:
        """All that a task needs to know to read a range: which broker to ask, too. A value that can be a key.

        Raises:
            BrokerNotNamed: No broker is known for it.
        """

    @property
    def types(self) -> tuple[str, ...] | None:
        """The types of messages that the options ask for; ``None`` = all messages."""

    def with_types(self, types: tuple[str, ...]) -> Source:
        """The same read, of messages of these types alone."""

    # ---- fetch, in the tasks

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range, in order, as batches of the columns that the options ask for.

        Raises:
            DataLoss: Messages of the range are gone and the option ``failOnDataLoss`` is true.
            CorruptFrame: A message is damaged and the option ``onCorrupt`` is ``fail``.
            ReadFailed: The broker could not be asked, even after retries, or refused.
        """

    def read_together(self, parts: Sequence[InputPartition]) -> Mapping[InputPartition, Sequence[pa.RecordBatch]]:
        """The rows of those ``parts`` that came at once and without fault; the others are left to ``read``."""
