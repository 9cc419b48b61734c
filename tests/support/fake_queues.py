"""A queue system in memory with queues of named brokers and dense offsets: a backend without wire, broker or Spark.

Methods without a docstring are those of the ``Protocol`` that their class implements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, StringType

from metaq.errors import ConnectionFailed, MetaqError
from metaq.model import OffsetRange, Partition, PartitionState, TopicPartition
from metaq.testing.manual_clock import ManualClock
from metaq_spark.backends.rocketmq import options as rocketmq_options
from metaq_spark.columns.row_layout import RowLayout
from metaq_spark.errors import OptionError
from metaq_spark.offsets import AvailableRanges, Offsets, Ranges
from metaq_spark.options.parsing import ConnectionOptions, ReadOptions, check_choice, check_read
from metaq_spark.options.positions import LATEST_OFFSET
from metaq_spark.options.selection import Selection, chosen
from metaq_spark.options.table import OptionTable, Use
from metaq_spark.source.backend import CommittedOffsets, DensePositions, LossSentences, PushedColumns

NOTATION = rocketmq_options.NOTATION
SENTENCES = LossSentences(
    "no broker has it", "it is another queue", "its end is lost", "its messages expired", "it is an older copy"
)


def queue(name: str, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, Partition.parse_queue(name))


@dataclass(frozen=True, kw_only=True)
class FakeOptions(ReadOptions):
    """A read of the fake."""

    @property
    def row_layout(self) -> RowLayout:
        return RowLayout((("queue", StringType()), ("value", BinaryType())))

    @property
    def found_by(self) -> str:
        return "nothing, as it is a fake"


TABLE = OptionTable((ReadOptions, ConnectionOptions), NOTATION, {}, "subscribe", "a page")


def fake_options(use: Use, **raw: str) -> FakeOptions:
    """The options of a read of ``orders``, unless others are given."""
    if not {"subscribe", "subscribePattern", "assign"} & raw.keys():
        raw["subscribe"] = "orders"
    raw |= {"commitGroupOffsets": "true"} if "group" in raw else {}
    values = TABLE.read(raw, use)
    check_choice(values)
    options = FakeOptions(**values, streaming=use is Use.STREAM_READ)
    check_read(options, use)
    return options


@dataclass
class FakeQueues:
    """The queues, by name: the first offset that is left, and all messages since offset 0. ``away``: brokers."""

    starts: dict[TopicPartition, int] = field(default_factory=dict)
    messages: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    times_ms: dict[TopicPartition, list[int]] = field(default_factory=dict)
    groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)

    def put(self, where: TopicPartition, *payloads: bytes, at_ms: int = 0) -> None:
        self.starts.setdefault(where, 0)
        self.messages.setdefault(where, []).extend(payloads)
        self.times_ms.setdefault(where, []).extend(at_ms for _ in payloads)

    def available_ranges(self) -> AvailableRanges:
        return {
            where: PartitionState(OffsetRange(self.starts[where], len(messages)), None)
            for where, messages in self.messages.items()
        }


class FakePositions(DensePositions):
    """A message counts for ten bytes."""

    def __init__(self, queues: FakeQueues) -> None:
        self._queues = queues

    def bytes_per_offset(self, ranges: Ranges) -> Mapping[TopicPartition, float]:
        return dict.fromkeys(ranges, 10.0)

    def first_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = {}
        for where, time_ms in times_ms.items():
            times = self._queues.times_ms[where]
            found[where] = next((n for n, each in enumerate(times) if each >= time_ms), len(times))
        return found


class FakeLastMessages:
    """Implements ``LastMessages``: a message is its time and the hash of its payload."""

    def __init__(self, queues: FakeQueues) -> None:
        self._queues = queues

    def before(self, spans: Ranges) -> dict[TopicPartition, str]:
        return {where: self._message(where, span.end) for where, span in spans.items()}

    def differing(self, asked: Mapping[TopicPartition, tuple[int, str]]) -> set[TopicPartition]:
        return {where for where, (offset, message) in asked.items() if self._message(where, offset) != message}

    def stored_ms(self, message: str) -> int | None:
        return int(message[:16], 16)

    def _message(self, where: TopicPartition, end: int) -> str:
        payload, time_ms = self._queues.messages[where][end - 1], self._queues.times_ms[where][end - 1]
        return f"{time_ms:016x}{hashlib.md5(payload).hexdigest()[:16]}"


class FakeCluster:
    """Implements ``Cluster``. ``connections`` is for a test to change."""

    def __init__(self, queues: FakeQueues) -> None:
        self._queues, self.positions = queues, FakePositions(queues)
        self.last_messages, self.connections = FakeLastMessages(queues), 1

    def available(self, selection: Selection) -> AvailableRanges:
        for broker in self._queues.away:
            raise ConnectionFailed(broker, "connect", "refused")
        return self.available_now(selection)[0]

    def available_now(self, selection: Selection) -> tuple[AvailableRanges, Mapping[str, MetaqError]]:
        away = self._queues.away
        found = {
            where: one for where, one in self._queues.available_ranges().items() if where.partition.broker not in away
        }
        return chosen(selection, found), {name: ConnectionFailed(name, "connect", "refused") for name in away}

    def require_there(self, option: str, partitions: Collection[TopicPartition]) -> None:
        pass

    def require_brokers(self, option: str, names: Collection[str], selection: Selection) -> None:
        pass

    def broker_of(self, where: TopicPartition) -> str | None:
        return where.partition.broker_name

    def listed_whole(self) -> Collection[str]:
        return ()

    def expect(self, partitions: Collection[TopicPartition]) -> None:
        """See ``Cluster``: every queue is listed."""

    missed: Mapping[str, MetaqError] = {}


class FakeGroups:
    """Implements ``CommittedOffsets``."""

    def __init__(self, queues: FakeQueues) -> None:
        self._groups = queues.groups

    def positions(self, group: str, partitions: Sequence[TopicPartition]) -> Offsets:
        """See ``CommittedOffsets``; a group begins at the end."""
        return dict.fromkeys(partitions, LATEST_OFFSET) | self._groups.get(group, {})

    def commit(self, group: str, offsets: Offsets) -> None:
        self._groups.setdefault(group, {}).update(offsets)


@dataclass(frozen=True)
class FakePart(InputPartition):
    """What a task of the fake needs."""

    where: TopicPartition
    offsets: OffsetRange


class FakeSource:
    """Implements ``Source``. In a pickled one, ``queues`` are a copy."""

    notation, sentences = NOTATION, SENTENCES

    def __init__(self, queues: FakeQueues, options: FakeOptions, clock: ManualClock) -> None:
        self.queues, self.options, self.clock = queues, options, clock
        self.cluster = FakeCluster(queues)
        self.groups: CommittedOffsets | None = None if options.group is None else FakeGroups(queues)
        self.reads = 0

    @property
    def pushed_columns(self) -> PushedColumns:
        return PushedColumns({}, "offset", "timestamp", None, lambda text: False)

    def check(self, *, streaming: bool, read: Collection[str] = ()) -> None:
        known = {where.topic for where in self.queues.messages}
        for topic in self.options.topics or ():
            if topic not in known:
                raise OptionError("subscribe", f"there is no topic {topic}")

    def report_unlisted(self, available: AvailableRanges, *, streaming: bool) -> None: ...

    def is_data_loss(self, error: MetaqError) -> bool:
        return False

    def part(self, where: TopicPartition, offsets: OffsetRange, incarnation: str | None) -> FakePart:
        return FakePart(where, offsets)

    def wants_type(self, name: str) -> bool:
        return True

    def with_types(self, types: tuple[str, ...]) -> FakeSource:
        return self

    def read(self, parts: Sequence[InputPartition]) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        for part in parts:
            assert isinstance(part, FakePart)
            start = max(part.offsets.start, self.queues.starts[part.where])
            values = self.queues.messages[part.where][start : part.offsets.end]
            columns: list[Any] = [pa.array([str(part.where.partition)] * len(values)), pa.array(values, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, names=["queue", "value"])
