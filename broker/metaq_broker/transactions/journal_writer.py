"""Writes the records of transactions to the journal, and records in the ledger why each is needed.

Every method writes all records of one step with one append, so the step is in the journal whole or not at all (a torn
end may leave its first records, which have no effect without the last one). Nothing is durable when a method returns.

A slot is released as soon as the record that ends it is written, durable or not: the checkpoint removes a file only
after everything written until then is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from metaq.model import Xid
from metaq_broker.transactions.checkpoint import RecordLedger, Slot
from metaq_broker.transactions.decisions import Decisions
from metaq_broker.transactions.interfaces import Unit
from metaq_broker.transactions.journal import Journal, JournalFailed, JournalRead, Location
from metaq_broker.transactions.outcomes import JournalUnavailable, Outcome, TransactionRefused
from metaq_broker.transactions.records import (
    NO_SERIAL,
    Applied,
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
from metaq_broker.transactions.recovery import Recovered
from metaq_broker.transactions.transaction import PartitionKey, Transaction, xid_of

_log = logging.getLogger(__name__)


def chunk_slot(serial: int, chunk: int) -> Slot:
    return ("chunk", serial, chunk)


def prepared_slot(serial: int) -> Slot:
    return ("prepared", serial)


def committed_slot(serial: int) -> Slot:
    """The slot of a commit whose messages are not yet in the partitions."""
    return ("committed", serial)


def heuristic_slot(key: Xid) -> Slot:
    return ("heuristic", key)


def decision_slot(query_id: str, batch_id: int) -> Slot:
    return ("decision", query_id, batch_id)


class JournalWriter:
    """Writes what happens to transactions. ``written`` is called after every append.

    Methods that write raise ``TransactionRefused`` if the journal does not accept the records; then nothing has
    changed.
    """

    def __init__(
        self, journal: Journal, ledger: RecordLedger, decisions: Decisions, written: Callable[[], None]
    ) -> None:
        self._journal = journal
        self._ledger = ledger
        self._decisions = decisions
        self._written = written
        self._applied_notes: list[Transaction] = []
        self._unapplied: dict[int, Transaction] = {}

    # ---- steps of one transaction

    def spill(self, transaction: Transaction) -> None:
        """Move the messages that the transaction has in memory to the journal."""
        self._write_step(transaction, None)

    def prepare(self, transaction: Transaction, at_ms: int) -> None:
        """Write that the transaction is prepared, at ``at_ms`` (wall clock)."""
        key = xid_of(transaction)
        location = self._write_step(transaction, lambda n: PreparedRecord(transaction.serial, n, key, at_ms))
        self._ledger.hold(prepared_slot(transaction.serial), location)
        transaction.prepared_ms = at_ms

    def commit(self, transaction: Transaction, ends: Ends) -> None:
        """Write that the transaction is committed; ``ends`` are the durable ends of its partitions. Also corrects
        earlier ``ends``.
        """
        location = self._write_step(transaction, lambda n: _committed(transaction, n, ends))
        self._hold_commit(transaction, ends, location)

    def roll_back(self, transaction: Transaction) -> None:
        self._append([RolledBack(transaction.serial)])
        self.release(transaction)

    def end_by_operator(self, transaction: Transaction, outcome: Outcome, ends: Ends) -> None:
        """Write the outcome that an operator chose for a prepared transaction; ``ends`` are used for a commit only."""
        key, serial = xid_of(transaction), transaction.serial
        (location,) = self._append([Heuristic(outcome, key, serial, transaction.chunks, ends)])
        self.adopt_outcome(key, outcome, location)
        if outcome is Outcome.COMMITTED:
            self._hold_commit(transaction, ends, location)
        else:
            self.release(transaction)

    def applied(self, transaction: Transaction) -> None:
        """Write that the messages are in their partitions. If the journal does not accept it now, ``note_applied``
        tries again, also with the next one.

        Until then the transaction keeps its records: a restart looks for the messages and finds them.
        """
        self._applied_notes.append(transaction)
        self.note_applied()

    def note_applied(self) -> None:
        """Write which transactions are over, as far as the journal has not accepted that yet."""
        if not self._applied_notes:
            return
        try:
            self._journal.append([Applied(noted.serial) for noted in self._applied_notes])
        except JournalFailed as failure:
            _log.warning("transaction journal: a finished transaction is not recorded yet: %s", failure)
            return
        for noted in self._applied_notes:
            self.release(noted)
        self._applied_notes.clear()
        self._written()

    def release(self, transaction: Transaction) -> None:
        self._unapplied.pop(transaction.serial, None)
        for chunk in range(transaction.chunks):
            self._ledger.release(chunk_slot(transaction.serial, chunk))
        self._ledger.release(prepared_slot(transaction.serial))
        self._ledger.release(committed_slot(transaction.serial))

    # ---- outcomes and decisions

    def accept_missing(self, key: Xid) -> None:
        """Write that a branch without messages counts as committed by an operator, replacing any earlier outcome."""
        (location,) = self._append([_remembered(key, Outcome.COMMITTED)])
        self.adopt_outcome(key, Outcome.COMMITTED, location)

    def forget(self, key: Xid) -> None:
        self._append([Forgotten(key)])
        self._ledger.release(heuristic_slot(key))

    def decide(self, decided: Decided, transactions: Sequence[Transaction]) -> None:
        """Write and remember a decision, which commits ``transactions``, the branches in ``decided.commits``."""
        self._decisions.check_capacity(decided)
        (location,) = self._append([decided])
        self.adopt_decision(decided, location)
        for position, transaction in enumerate(transactions):
            ends = {
                partition_key: end
                for partition_key, end in decided.ends.items()
                if partition_key in transaction.contents
            }
            self._hold_commit(transaction, ends, location, location.lsn + position)

    def mark(self) -> None:
        """Write a record without effect: when it is durable, this broker was the master after this call.

        Raises:
            JournalFailed: The journal does not accept it.
        """
        self._journal.append([RolledBack(NO_SERIAL)])
        self._written()

    def undecide(self, query_id: str) -> None:
        """Write that the decisions of a query are forgotten, and forget them."""
        self._append([Undecided(query_id)])
        self._release_decisions(query_id, self._decisions.forget(query_id))

    def _release_decisions(self, query_id: str, batch_ids: Sequence[int]) -> None:
        for batch_id in batch_ids:
            self._ledger.release(decision_slot(query_id, batch_id))

    def unapplied(self) -> list[Transaction]:
        """Return the committed transactions whose messages a restart would look for."""
        return list(self._unapplied.values())

    def needed_from(self, partition_key: PartitionKey) -> int | None:
        """Return the offset from which a restart looks for committed messages in this partition; ``None`` = it does
        not.
        """
        return min(
            (each.ends[partition_key] for each in self._unapplied.values() if partition_key in each.ends), default=None
        )

    # ---- after a restart

    def adopt(self, recovered: Recovered) -> None:
        """Record in the ledger the records of a transaction that outlived a restart."""
        transaction = recovered.transaction
        for chunk, location in enumerate(recovered.chunks):
            self._ledger.hold(chunk_slot(transaction.serial, chunk), location)
        if recovered.prepared is not None:
            self._ledger.hold(prepared_slot(transaction.serial), recovered.prepared)
        if recovered.committed is not None:
            self._hold_commit(transaction, transaction.ends, recovered.committed)

    def adopt_outcome(self, key: Xid, outcome: Outcome, location: Location) -> None:
        """Record in the ledger the record of a heuristic outcome."""
        self._ledger.hold(heuristic_slot(key), location, lambda: _remembered(key, outcome))

    def adopt_decision(self, decided: Decided, location: Location) -> None:
        """Remember a decision whose record is at ``location``."""
        query_id, batch_id = decided.query_id, decided.batch_id
        self._release_decisions(query_id, self._decisions.remember(decided))
        slot = decision_slot(query_id, batch_id)
        self._ledger.hold(slot, location, lambda: self._decisions.kept(query_id, batch_id))

    # ---- reading back

    def units(self, transaction: Transaction) -> list[list[Unit]]:
        """Read the units of a transaction from the journal, grouped by partition, in the order of the puts (blocking).

        Raises:
            JournalDamaged, OSError: They cannot be read.
        """
        return _by_partition(map(self._journal.read, self._locations(transaction)))

    def begin_read(self, transaction: Transaction) -> JournalRead:
        """Capture where the messages of a transaction are. Run the result in any thread, then pass it to ``end_read``.
        """
        return self._journal.begin_read(self._locations(transaction))

    def end_read(self, job: JournalRead) -> list[list[Unit]]:
        """Return the units that ``job`` has read, as ``units`` does."""
        self._journal.end_read(job)
        return _by_partition(job.records)

    def _locations(self, transaction: Transaction) -> list[Location]:
        return [self._ledger.location(chunk_slot(transaction.serial, number)) for number in range(transaction.chunks)]

    def _write_step(self, transaction: Transaction, last: Callable[[int], Record] | None) -> Location:
        """Write the messages that are still in memory, then the record that ``last`` makes of the number of chunks."""
        chunk = transaction.next_chunk()
        chunks = transaction.chunks + (chunk is not None)
        records: list[Record] = [] if chunk is None else [chunk]
        if last is not None:
            records.append(last(chunks))
        locations = self._append(records)
        if chunk is not None:
            self._ledger.hold(chunk_slot(transaction.serial, chunk.chunk), locations[0])
            transaction.chunk_written()
        return locations[-1]

    def _hold_commit(self, transaction: Transaction, ends: Ends, location: Location, order: int | None = None) -> None:
        transaction.ends = ends
        if transaction.order is None:
            transaction.order = location.lsn if order is None else order
        self._unapplied[transaction.serial] = transaction
        self._ledger.hold(
            committed_slot(transaction.serial),
            location,
            lambda: _committed(transaction, transaction.chunks, transaction.ends),
        )

    def _append(self, records: Sequence[Record]) -> list[Location]:
        try:
            locations = self._journal.append(records)
        except JournalFailed as failure:
            raise TransactionRefused(JournalUnavailable(str(failure))) from failure
        self._written()
        return locations


def _committed(transaction: Transaction, chunks: int, ends: Ends) -> Committed:
    return Committed(transaction.serial, chunks, transaction.key, ends, transaction.order)


def _by_partition(chunks: Iterable[Record]) -> list[list[Unit]]:
    units: dict[PartitionKey, list[Unit]] = {}
    for chunk in chunks:
        assert isinstance(chunk, Messages)
        for unit in chunk.units:
            units.setdefault(unit.partition_key, []).append(unit)
    return list(units.values())


def _remembered(key: Xid, outcome: Outcome) -> Heuristic:
    """Return the record that only remembers an outcome."""
    return Heuristic(outcome, key, NO_SERIAL, 0, {})
