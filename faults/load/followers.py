"""Workers that read: they follow the ends of all partitions and record every frame and every end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from faults.load.worker import MetaqWorker, SharedWork
from faults.stored import PartitionKey, examine
from metaq.backends.metaq.fetch import AtEnd, Moved, Run, fetch
from metaq.backends.metaq.session import Session
from metaq.errors import BrokerError, CorruptFrame
from metaq.formats.frames import walk, whole_bytes

IDLE_INTERVAL_S: Final = 0.005
FETCH_BYTES: Final = (64, 1000, 10_000, 1 << 16, 1 << 20)
FROM_THE_START_CHANCE: Final = 0.1


@dataclass(slots=True)
class Position:
    """A follower's position in one partition; ``cut`` is the beginning of the frame at ``offset``, if incomplete."""

    offset: int = 0
    cut: bytes = b""


class Follower(MetaqWorker):
    """Reads all partitions in turn. It keeps its positions, with incomplete frames, when the connection is lost."""

    def __init__(self, name: str, shift: SharedWork, seed: str) -> None:
        super().__init__(name, shift, seed)
        self._positions = {partition_key: Position() for partition_key in self.shift.partition_keys}

    def serve(self, session: Session) -> None:
        if self.random.random() < FROM_THE_START_CHANCE:
            self._positions = {partition_key: Position() for partition_key in self.shift.partition_keys}
        while not self.shift.over.is_set():
            moved = [self._read(session, partition_key) for partition_key in self.shift.partition_keys]
            if not any(moved):
                self.shift.over.wait(IDLE_INTERVAL_S)

    def _read(self, session: Session, partition_key: PartitionKey) -> bool:
        """Read once; return whether there was anything."""
        position, started = self._positions[partition_key], self.history.stamp()
        asked = position.offset + len(position.cut)
        try:
            answer = fetch(session, partition_key.topic, partition_key.index, asked, self.random.choice(FETCH_BYTES))
        except BrokerError as error:
            if not self.shift.refusals_expected:
                self.history.odd("refused get", f"{self.lane}: {error}")
            return False
        match answer:
            case Run():
                self._take(partition_key, position, answer.data)
            case AtEnd() if position.cut:
                self.history.odd("cut frame", f"{partition_key} ends at {asked}, inside the frame at {position.offset}")
            case AtEnd():
                self.history.end_seen(partition_key, asked, started)
            case Moved():
                self._moved(partition_key, asked, answer.offset)
        return isinstance(answer, Run)

    def _take(self, partition_key: PartitionKey, position: Position, data: bytes) -> None:
        run = position.cut + data
        try:
            whole = whole_bytes(run)
            self.history.seen(
                partition_key,
                [examine(frame) for frame in walk(run[:whole], position.offset, where=str(partition_key))],
            )
        except CorruptFrame as error:
            self.history.odd("corrupt frame", f"{self.lane}: {error}")
            self._positions[partition_key] = Position(position.offset)
            return
        position.offset, position.cut = position.offset + whole, run[whole:]

    def _moved(self, partition_key: PartitionKey, asked: int, to: int) -> None:
        if to <= asked or not self.shift.retention:
            self.history.odd("moved reader", f"{partition_key}: a reader at {asked} was sent to {to}")
        self._positions[partition_key] = Position(to)
