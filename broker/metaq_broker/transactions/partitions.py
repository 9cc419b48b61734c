"""The partitions as the transactions see them: ``TransactionStore`` on the engine. The only door to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from metaq.formats.frames import Frame, frame_bytes
from metaq.formats.message_id import IdRange
from metaq.model import Buffer
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.outcomes import DiskFull, Refusal, StorageFailed
from metaq_broker.log.segments.marks import BlockPart, Marks
from metaq_broker.transactions.interfaces import Unit
from metaq_broker.transactions.outcomes import TransactionRefused


class EngineStore:
    """Implements ``TransactionStore``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._mark_bytes = engine.config.system.index_interval_bytes

    def check(self, topic: str, partition: int) -> None:
        """Makes the partition's log, so that a commit cannot fail for want of it."""
        log = self._engine.log_for_put(topic, partition)
        if isinstance(log, Refusal):
            raise TransactionRefused(log)
        if (reason := self.check_space([])) is not None:
            raise TransactionRefused(DiskFull(reason))
        if log.failure is not None:
            raise TransactionRefused(StorageFailed(f"partition {topic}-{partition} is read-only: {log.failure}"))

    def check_space(self, partition_keys: Iterable[tuple[str, int]]) -> str | None:
        space, config = self._engine.space, self._engine.config
        if self._engine.id_clock.fault is not None:
            return self._engine.id_clock.fault
        if not space.low:
            return None
        paths = [config.system.data_log_path, *(config.topic_settings(topic).data_path for topic, _ in partition_keys)]
        return next((reason for path in paths if (reason := space.refusal(path)) is not None), None)

    def log_end(self, topic: str, partition: int) -> int:
        log = self._engine.stores.get(topic, partition)
        return 0 if log is None else log.readable_end

    def next_ids(self, count: int) -> IdRange:
        return self._engine.reserve_ids(count)

    def append(self, units: Sequence[Unit], done: Callable[[Exception | None], None]) -> None:
        topic, partition = units[0].partition_key
        self._engine.append_committed(topic, partition, [self._block_part(unit) for unit in units], done)

    def _block_part(self, unit: Unit) -> BlockPart:
        """A unit as the log takes it. Only one that was read after a restart has no marks: its frames are walked."""
        marks = _marks(unit.block, self._mark_bytes) if unit.marks is None else unit.marks
        return BlockPart(unit.block, unit.messages, marks)

    def scan(self, topic: str, partition: int, from_offset: int) -> Iterable[Frame]:
        log = self._engine.stores.get(topic, partition)
        return () if log is None else log.scan(from_offset)


def _marks(block: Buffer, mark_bytes: int) -> Marks:
    """Return the marks of some frames of a block, at least ``mark_bytes`` apart."""
    marks, start, ordinal, next_mark = Marks(), 0, 0, 0
    while start < len(block):
        if start >= next_mark:
            marks.add(start, ordinal)
            next_mark = start + mark_bytes
        start += frame_bytes(block, start)
        ordinal += 1
    return marks
