"""What a restart finds in the journal, and how it finishes interrupted commits.

The partitions have been loaded before (their torn tails are cut); then the journal is read from end to end:

* A transaction that is neither prepared nor committed is rolled back.
* A prepared one is prepared again; its messages are in the journal.
* A committed one whose ``Applied`` note is in the journal is finished.
* A committed one without the note may be in its partitions or not. What can be there, per partition:

  - kill -9: what was written stays. The unit is missing, complete, or (killed inside the write) a prefix of it is the
    end of the log, because loading the log has removed the cut frame. Nothing can be after a prefix.
  - power loss: additionally, bytes that no fsync covered may be lost in any order, also bytes of plain puts before
    and after the unit. The log's own recovery has cut or set aside broken frames. So any part of the unit may be there.
  - the note itself may be lost (no caller waits for it) although the unit is complete.

  One rule covers all cases: look at every frame after the log's durable end when the commit was written, and append
  the frames of the unit that are not there, in one piece. Frames are the same if id, flag, checksum and length are
  equal. A missing unit is thus appended whole, and a prefix at the end is completed in place; only after a power loss
  that tore the middle out of a unit are its messages all there, once each, but not in one piece.

* A log that ends *earlier* now than the commit says has lost durable bytes: a folder was removed, or brought back from
  an old copy. Then the unit is appended before the recorded end, and after a second crash recovery would not find it
  and append it again. So the recorded ends are lowered, in a new commit record that is durable before anything is
  appended.

No message may be put before this is done: a torn prefix must still be the end of its log.

Prepared and committed transactions must have all their chunks. If one is missing, a journal file is missing, and the
broker does not start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import Frame, walk
from metaq.model import TransactionId, Xid
from metaq_broker.transactions.interfaces import TransactionStore, Unit
from metaq_broker.transactions.journal import Location
from metaq_broker.transactions.outcomes import Outcome
from metaq_broker.transactions.records import (
    NO_SERIAL,
    Applied,
    Branch,
    Committed,
    Decided,
    Ends,
    Forgotten,
    Heuristic,
    Messages,
    PreparedRecord,
    Record,
    RolledBack,
    Undecided,
)
from metaq_broker.transactions.state import State
from metaq_broker.transactions.transaction import PartitionKey, Transaction


class JournalIncomplete(Exception):
    """Messages of a prepared or committed transaction are not in the journal: one of its files is missing."""


@dataclass(slots=True)
class _Found:
    """The records of one serial."""

    chunks: dict[int, tuple[Location, tuple[tuple[PartitionKey, int, int], ...]]] = field(default_factory=dict)
    key: TransactionId | None = None
    chunk_count: int = 0
    prepared: Location | None = None
    prepared_ms: int = 0
    committed: Location | None = None
    order: int = 0
    ends: dict[PartitionKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A transaction that outlived the restart, with the locations of its records."""

    transaction: Transaction
    chunks: tuple[Location, ...]
    prepared: Location | None
    committed: Location | None


@dataclass(frozen=True, slots=True)
class JournalReport:
    """What a restart found: how many transactions are prepared, were completed, or were rolled back."""

    prepared: int
    completed: int
    rolled_back: int


class Replay:
    """Replays the records of a journal in order and keeps the ones that still have an effect."""

    def __init__(self) -> None:
        self._found: dict[int, _Found] = {}
        self._ended: set[int] = set()
        self.last_serial = NO_SERIAL
        self.last_message_id = -1
        """The largest id of a message in the journal; -1 without one."""
        self.outcomes: dict[Xid, tuple[Location, Outcome]] = {}
        self.decisions: dict[str, list[tuple[Location, Decided]]] = {}

    def visit(self, location: Location, record: Record) -> None:
        match record:
            case Messages():
                self._messages(location, record)
            case PreparedRecord():
                found = self._at(record.serial, record.key, record.chunks)
                found.prepared, found.prepared_ms = location, record.at_ms
            case Committed():
                order = location.lsn if record.order is None else record.order
                self._commit(location, order, record, record.ends)
            case RolledBack() | Applied():
                self._end(record.serial)
            case Heuristic():
                self._heuristic(location, record)
            case Forgotten():
                self.outcomes.pop(record.key, None)
            case Decided():
                self.decisions.setdefault(record.query_id, []).append((location, record))
                for position, branch in enumerate(record.commits):
                    self._commit(location, location.lsn + position, branch, record.ends)
            case Undecided():
                self.decisions.pop(record.query_id, None)

    def _at(self, serial: int, key: TransactionId | None = None, chunks: int = 0) -> _Found:
        self.last_serial = max(self.last_serial, serial)
        found = self._found.setdefault(serial, _Found())
        if key is not None:
            found.key, found.chunk_count = key, chunks
        return found

    def _messages(self, location: Location, record: Messages) -> None:
        sizes = tuple((unit.partition_key, len(unit.frames), unit.frames.count) for unit in record.units)
        for unit in record.units:  # ids ascend within a unit
            self.last_message_id = max(self.last_message_id, unit.frames.message_id(unit.frames.count - 1))
        self._at(record.serial).chunks[record.chunk] = (location, sizes)

    def _commit(self, location: Location, order: int, record: Committed | Branch | Heuristic, ends: Ends) -> None:
        found = self._at(record.serial, record.key, record.chunks)
        found.committed, found.order = location, order
        for partition_key, end in ends.items():
            found.ends[partition_key] = min(end, found.ends.get(partition_key, end))

    def _heuristic(self, location: Location, record: Heuristic) -> None:
        outcome = Outcome(record.outcome)
        self.outcomes[record.key] = (location, outcome)
        if record.serial == NO_SERIAL:
            return
        if outcome is Outcome.COMMITTED:
            self._commit(location, location.lsn, record, record.ends)
        else:
            self._end(record.serial)

    def _end(self, serial: int) -> None:
        self._at(serial)
        self._found[serial] = _Found()  # its chunks are no longer needed in memory
        self._ended.add(serial)

    def recovered(self) -> list[Recovered]:
        """Return the prepared transactions in the order of their records, and the committed ones in their order.

        Raises:
            JournalIncomplete: Messages of one of them are missing.
        """
        living = [
            (found.order if found.committed else record.lsn, serial, found)
            for serial, found in self._found.items()
            if serial not in self._ended and (record := found.committed or found.prepared)
        ]
        return [_recovered(serial, found) for _, serial, found in sorted(living, key=lambda item: (item[0], item[1]))]

    @property
    def unfinished(self) -> int:
        """Number of transactions with messages in the journal that the restart rolls back."""
        return sum(
            1
            for serial, found in self._found.items()
            if serial not in self._ended and not (found.committed or found.prepared)
        )


def _recovered(serial: int, found: _Found) -> Recovered:
    assert found.key is not None  # records of prepares and commits have a key
    missing = [chunk for chunk in range(found.chunk_count) if chunk not in found.chunks]
    if missing:
        raise JournalIncomplete(f"transaction {found.key}: chunk {missing[0]} of {found.chunk_count} is not there")
    transaction = Transaction(found.key, serial, begun_ms=found.prepared_ms, chunks=found.chunk_count)
    transaction.state = State.COMMITTING if found.committed else State.PREPARED
    transaction.order = found.order if found.committed else None
    transaction.prepared_ms = found.prepared_ms if found.prepared else None
    locations = []
    for chunk in range(found.chunk_count):
        location, sizes = found.chunks[chunk]
        locations.append(location)
        for partition_key, byte_count, messages in sizes:
            transaction.count(partition_key, byte_count, messages)
    transaction.ends = {
        partition_key: end for partition_key, end in found.ends.items() if partition_key in transaction.contents
    }
    return Recovered(transaction, tuple(locations), found.prepared, found.committed)


def lowered_ends(transaction: Transaction, store: TransactionStore) -> Ends:
    """Return the offsets from which to look for a committed transaction's messages; lower than recorded if a log is
    shorter.
    """
    return {partition_key: min(end, store.log_end(*partition_key)) for partition_key, end in transaction.ends.items()}


def missing_units(units: Iterable[Sequence[Unit]], ends: Ends, store: TransactionStore) -> list[list[Unit]]:
    """Return the parts of ``units`` (grouped by partition) that the partitions do not have from ``ends`` on."""
    missing = []
    for group in units:
        partition_key = group[0].partition_key
        stored = {_identity(frame) for frame in store.scan(*partition_key, ends[partition_key])}
        block = FrameBlock.joined([unit.frames for unit in group])
        frames = enumerate(walk(block.data))
        left = [number for number, frame in frames if _identity(frame) not in stored]
        if left:
            missing.append([Unit(*partition_key, block.picked(left))])
    return missing


def _identity(frame: Frame) -> tuple[int, int, int, int]:
    return frame.message_id, frame.flag, frame.checksum, len(frame.body)


def report(replay: Replay, recovered: list[Recovered], committed: list[Transaction]) -> JournalReport:
    return JournalReport(len(recovered) - len(committed), len(committed), replay.unfinished)
