"""Checkpoints, which bound the size of the journal.

A journal file is removed when no slot of the ledger needs a record in it, and only the oldest file can be removed. So
one prepared transaction that its coordinator has forgotten would keep every later file. Therefore, when the journal is
larger than

    checkpoints_max * file_bytes + 2 * (bytes of the records that are needed)

the needed records of the oldest file are copied to the end, and the file is removed. The factor 2 bounds the work: at
that size at least half of the journal is garbage, so one pass over it writes no more than it frees.

The size is checked when a file is begun and every ``interval_s`` seconds; the periodic check also makes the notes that
no caller waits for (``Applied``, ``Forgotten``) durable. MetaQ's keys keep a meaning: ``maxCheckpoints`` is the number
of full files that may accumulate, ``checkpointInterval`` the longest time between two checks.

A file is removed only after everything written until then is durable: the copies of its records, and the records that
ended its transactions.

The ledger records which journal records are still needed, and for what.

A slot names what a record preserves: a chunk of messages, a prepare, a commit that is not yet in the partitions, a
remembered decision or heuristic outcome. A slot's record may be rewritten at the end of the journal (``rewrite`` makes
the new record from the current state), so that old files can be removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from metaq_broker.transactions.group_sync import GroupSync
from metaq_broker.transactions.interfaces import MIB, CallLater, Timer
from metaq_broker.transactions.journal import Journal, JournalDamaged, JournalFailed, Location
from metaq_broker.transactions.records import Record

Slot = Hashable
Rewrite = Callable[[], Record]


@dataclass(slots=True)
class _Retained:
    location: Location
    rewrite: Rewrite | None


class RecordLedger:
    """Maps slots to the locations of their records. Several slots may share one record."""

    def __init__(self) -> None:
        self._retained: dict[Slot, _Retained] = {}
        self._live_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Bytes of all records that are needed. A shared record counts once per slot."""
        return self._live_bytes

    def hold(self, slot: Slot, location: Location, rewrite: Rewrite | None = None) -> None:
        """Record that ``slot`` needs the record at ``location``, instead of an earlier one.

        Without ``rewrite``, the record's bytes are copied when its file is removed.
        """
        self.release(slot)
        self._retained[slot] = _Retained(location, rewrite)
        self._live_bytes += location.length

    def release(self, slot: Slot) -> None:
        retained = self._retained.pop(slot, None)
        if retained is not None:
            self._live_bytes -= retained.location.length

    def location(self, slot: Slot) -> Location:
        return self._retained[slot].location

    def oldest_lsn(self, otherwise: int) -> int:
        """Return the LSN of the oldest record that is needed; ``otherwise`` if none is."""
        return min((retained.location.lsn for retained in self._retained.values()), default=otherwise)

    def before(self, lsn: int) -> list[Slot]:
        """Return the slots whose records are before ``lsn``, in the order of their LSNs."""
        found = [
            (retained.location.lsn, slot) for slot, retained in self._retained.items() if retained.location.lsn < lsn
        ]
        return [slot for _, slot in sorted(found, key=lambda item: item[0])]

    def move(self, slot: Slot, location: Location) -> None:
        """Record that the record of ``slot`` was written again at ``location``."""
        self.hold(slot, location, self._retained[slot].rewrite)

    def rewrite_of(self, slot: Slot) -> Rewrite | None:
        """Return how to make a new record for ``slot``; ``None`` = copy the old one."""
        return self._retained[slot].rewrite


_log = logging.getLogger(__name__)

MOVE_BYTES: Final = 4 * MIB
"""A checkpoint copies up to this many bytes before the event loop serves others again."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """How large the journal may get and how often it is checked."""

    checkpoints_max: int = 3
    interval_s: float = 3600.0
    file_bytes: int = 64 * MIB


class JournalCheckpoint:
    """Bounds the size of one journal. At most one pass runs at a time."""

    def __init__(
        self,
        journal: Journal,
        sync: GroupSync,
        ledger: RecordLedger,
        call_later: CallLater,
        settings: CheckpointSettings,
    ) -> None:
        self._journal = journal
        self._sync = sync
        self._ledger = ledger
        self._call_later = call_later
        self._settings = settings
        self._running = False
        self._seen_files = 1
        self._free_until = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        self._timer = self._call_later(self._settings.interval_s, self.start)
        self._sync.when_on_disk(lambda failure: self.run())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def after_append(self) -> None:
        """Start a pass if there are more files than after the last one. To be called after every append."""
        if self._journal.file_count > self._seen_files:
            self.run()

    def run(self) -> None:
        """Start a pass, unless one is in progress; it continues when fsyncs complete."""
        if not self._running:
            self._running = True
            self._plan()

    def _plan(self) -> None:
        try:
            copied = self._too_large() and self._copy_from_oldest()
        except (OSError, JournalFailed, JournalDamaged) as error:
            _log.error("checkpoint of the transaction journal stopped: %s", error)
            copied = False
        self._free_until = min(self._ledger.oldest_lsn(self._journal.end_lsn), self._journal.newest_start)
        if copied or self._journal.oldest_end <= self._free_until:
            # The copies, and the records that made these unneeded, must be on disk before the file is removed.
            self._sync.when_on_disk(self._drop)
        else:
            self._stop()

    def _drop(self, failure: Exception | None) -> None:
        if failure is not None:
            self._stop()
            return
        try:
            self._journal.drop_before(self._free_until)
        except OSError as error:
            _log.error("cannot remove a transaction journal file: %s", error)
            self._stop()
            return
        self._plan()

    def _stop(self) -> None:
        self._seen_files = self._journal.file_count
        self._running = False

    def _too_large(self) -> bool:
        allowed = self._settings.checkpoints_max * self._settings.file_bytes + 2 * self._ledger.live_bytes
        return self._journal.byte_count > allowed and self._journal.file_count > 1

    def _copy_from_oldest(self) -> bool:
        """Write needed records of the oldest file again, in part if there are many; return whether there were any."""
        copied = 0
        for slot in self._ledger.before(self._journal.oldest_end):
            rewrite = self._ledger.rewrite_of(slot)
            record = rewrite() if rewrite is not None else self._journal.read(self._ledger.location(slot))
            (location,) = self._journal.append([record])
            self._ledger.move(slot, location)
            copied += location.length
            if copied >= MOVE_BYTES:
                break
        return copied > 0
