"""From a durable commit record to readable messages.

The order that makes a commit whole: first the commit record is durable, then the messages are appended to the
partitions, one contiguous unit each, then they are durable there, then the journal notes that its records are no longer
needed, and the committer gets "done". A crash before the first step leaves nothing; after a later crash, recovery
finishes the commit.

If a partition cannot store its unit (its disk is full, or has failed), the transaction stays committed: callers get
that answer, and the append is retried until it succeeds (``stalled``).

Large transactions are read from the journal in a worker thread, each while the previous one is appended. One quantum of
the event loop appends one partition, so other work waits no longer than that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from metaq_broker.log.engine.outcomes import Refusal, StorageFailed
from metaq_broker.transactions.interfaces import MIB, CallLater, RunInWorker, TransactionStore, Unit
from metaq_broker.transactions.journal import JournalDamaged
from metaq_broker.transactions.journal_writer import JournalWriter
from metaq_broker.transactions.outcomes import CommittedNotStored
from metaq_broker.transactions.stalled import Failures, StalledCommits, Together
from metaq_broker.transactions.transaction import Transaction

_log = logging.getLogger(__name__)

AT_ONCE_BYTES: Final = MIB
"""Transactions of up to this many bytes are read and appended in one quantum of the event loop, without a worker
thread.
"""

Units = Sequence[Sequence[Unit]]
"""The units of a transaction, grouped by partition."""


class Applier:
    """Appends the messages of committed transactions to the partitions; calls ``applied`` for each one that is
    readable.
    """

    def __init__(
        self,
        writer: JournalWriter,
        store: TransactionStore,
        call_later: CallLater,
        run_in_worker: RunInWorker,
        applied: Callable[[Transaction], None],
    ) -> None:
        self.call_later = call_later
        self.run_in_worker = run_in_worker
        self.writer = writer
        self._applied = applied
        self._store = store
        self.stalled = StalledCommits(writer, store, call_later, run_in_worker, self._stored)
        self.lane = Lane(self)
        """Appends transactions in the order in which their commits became durable."""
        self.stopped = False

    def stop(self) -> None:
        """Stop appending: the journal is about to close. The next start finishes what is left."""
        self.stopped = True
        self.stalled.stop()

    def resume(self, transaction: Transaction, units: Units) -> None:
        """Append the units of a committed transaction that a restart found missing in the partitions."""
        if units:
            self.append(transaction, units, unsure=True)
        else:
            self._stored(transaction)

    def append(self, transaction: Transaction, units: Units, *, unsure: bool = False) -> None:
        """Append the units of a committed transaction, at least one; ``unsure`` as for ``finished``."""
        together = self.together(transaction, units, unsure=unsure)
        for group in units:
            self.append_group(group, together)

    def together(self, transaction: Transaction, units: Units, *, unsure: bool = False) -> Together:
        """Return what ``append_group`` needs for each of ``units``."""
        done = partial(self.finished, transaction, unsure=unsure)
        return Together(len(units), done, partial(self.stalled.failed, transaction))

    def append_group(self, group: Sequence[Unit], together: Together) -> None:
        """Append the units of one partition, unless units of an earlier transaction are still missing there."""
        partition_key = group[0].partition_key
        before = self.stalled.before(partition_key)
        if before is None:
            self._store.append(group, partial(together.one, partition_key))
        else:
            together.one(partition_key, before)

    def unread(self, transaction: Transaction, error: Exception) -> None:
        """Record that the messages of a transaction cannot be read from the journal."""
        self.finished(transaction, dict.fromkeys(transaction.contents, StorageFailed(str(error), error)))

    def finished(self, transaction: Transaction, failures: Failures, *, unsure: bool = False) -> None:
        """Record that a transaction is readable, or which partitions cannot store their messages now.

        ``unsure``: the partitions may already hold some of its messages.
        """
        if self.stopped:
            return
        if not failures:
            self._stored(transaction)
            return
        reason = next(iter(failures.values())).reason
        _log.error("transaction %s is committed, but not readable yet: %s", transaction.key, reason)
        self.stalled.add(transaction, failures, unsure=unsure)
        fail(transaction, CommittedNotStored(transaction.key, reason))

    def _stored(self, transaction: Transaction) -> None:
        self.writer.applied(transaction)
        self._applied(transaction)


class Lane:
    """Appends durably committed transactions in order, one partition per quantum; the next large one is read meanwhile.

    Transactions of different lanes do not wait for each other.

    At most two large transactions are in memory: ``_left`` has the remaining steps of the one that is being appended,
    one step for each partition; ``_next`` has the steps of the next one, which is read meanwhile. A transaction that
    cannot be read has one step, which reports this in its turn: earlier commits to the same partitions do not wait.
    """

    def __init__(self, applier: Applier) -> None:
        self._applier = applier
        self._waiting: deque[Transaction] = deque()
        self._left: deque[Callable[[], None]] = deque()
        self._next: deque[Callable[[], None]] = deque()
        self._reading = False
        self._scheduled = False

    def add(self, transactions: Sequence[Transaction]) -> None:
        self._waiting.extend(transactions)
        if not self._scheduled:
            self._run_quantum()

    def _run_quantum(self) -> None:
        self._scheduled = False
        if self._applier.stopped:
            return
        if not self._left:
            self._left, self._next = self._next, self._left
        if not self._reading and not self._next and self._waiting and not self._small_next:
            self._read_in_worker(self._waiting.popleft())
        if self._left:
            self._left.popleft()()
        elif self._small_next:
            self._at_once(self._waiting.popleft())
        if not self._scheduled and (self._left or self._next or (self._waiting and not self._reading)):
            self._scheduled = True
            self._applier.call_later(0.0, self._run_quantum)

    @property
    def _small_next(self) -> bool:
        return bool(self._waiting) and not self._reading and self._waiting[0].byte_count <= AT_ONCE_BYTES

    def _at_once(self, transaction: Transaction) -> None:
        applier = self._applier
        try:
            units = applier.writer.units(transaction)
        except (JournalDamaged, OSError) as error:
            applier.unread(transaction, error)
            return
        applier.append(transaction, units)

    def _read_in_worker(self, transaction: Transaction) -> None:
        writer, self._reading = self._applier.writer, True
        job = writer.begin_read(transaction)

        def read(error: BaseException | None) -> None:
            units = writer.end_read(job)
            self._reading = False
            if error is None:
                together = self._applier.together(transaction, units)
                self._next.extend(partial(self._applier.append_group, group, together) for group in units)
            elif isinstance(error, Exception):
                self._next.append(partial(self._applier.unread, transaction, error))
            if not self._scheduled:
                self._run_quantum()

        self._applier.run_in_worker(job.run, read)


def settle(transaction: Transaction, refusal: Refusal | None) -> None:
    waiting, transaction.waiting = transaction.waiting, []
    for done in waiting:
        done(refusal)


def fail(transaction: Transaction, refusal: Refusal) -> None:
    """Record why a transaction cannot end now, and call its waiting callbacks with the refusal."""
    transaction.failure = refusal
    settle(transaction, refusal)
