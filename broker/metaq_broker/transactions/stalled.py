"""Committed transactions whose messages a partition cannot store now: its disk is full, or it is read-only.

They are retried in commit order until every partition has its messages, so no restart is needed. Later commits to a
stalled partition wait behind them.

A write that found no space has left nothing behind. After any other failure, and a recovery of the partition, it is
unknown what was stored. Then the partition is read from where it ended at the commit, as after a restart, and the
missing messages are appended.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from metaq.errors import MetaqError
from metaq_broker.log.engine.outcomes import StorageFailed
from metaq_broker.log.files.errors import LogFull
from metaq_broker.transactions.interfaces import CallLater, RunInWorker, Timer, TransactionStore, Unit
from metaq_broker.transactions.journal import JournalRead
from metaq_broker.transactions.journal_writer import JournalWriter
from metaq_broker.transactions.outcomes import CommittedNotStored
from metaq_broker.transactions.recovery import missing_units
from metaq_broker.transactions.transaction import PartitionKey, Transaction

_LOG: Final = logging.getLogger(__name__)

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 8.0
"""Seconds between two attempts, after the earlier ones have failed."""

Failures = Mapping[PartitionKey, StorageFailed]
"""The partitions that could not store their unit, and why."""

OnStored = Callable[[Failures], None]
OnFailed = Callable[[PartitionKey, StorageFailed], None]


@dataclass(frozen=True, slots=True)
class StalledBefore(StorageFailed):
    """The partition does not have the messages of an earlier transaction yet; ``reason`` says why."""


class Together:
    """Calls ``done`` once ``one`` has been called ``left`` times, and ``failed`` at once for each failure."""

    def __init__(self, left: int, done: OnStored, failed: OnFailed | None = None) -> None:
        self._left, self._done, self._failed = left, done, failed
        self._failures: dict[PartitionKey, StorageFailed] = {}

    def one(self, partition_key: PartitionKey, failure: StorageFailed | None) -> None:
        """Record that a partition has stored its unit, or why not."""
        if failure is not None:
            self._failures[partition_key] = failure
            if self._failed is not None:
                self._failed(partition_key, failure)
        self._left -= 1
        if not self._left:
            self._done(self._failures)


def append_units(store: TransactionStore, units: Sequence[Sequence[Unit]], done: OnStored) -> None:
    """Append the units of several partitions; call ``done`` when all of them are readable or have failed."""
    if not units:
        done({})
        return
    together = Together(len(units), done)
    for group in units:
        store.append(group, partial(together.one, group[0].partition_key))


def _left_nothing(failure: StorageFailed) -> bool:
    """Return whether it is known that no message was stored."""
    return isinstance(failure, StalledBefore) or isinstance(failure.cause, LogFull)


@dataclass(slots=True, eq=False)
class _Stalled:
    """``left`` are the partitions that have not stored their unit; those in ``unsure`` may have a part of it.

    ``is_tried``: its other partitions have ended, too, so that it is retried.
    """

    transaction: Transaction
    reason: str = ""
    left: set[PartitionKey] = field(default_factory=set)
    unsure: set[PartitionKey] = field(default_factory=set)
    is_tried: bool = False


class StalledCommits:
    """Retries stalled transactions; calls ``stored`` with each one whose messages are all readable."""

    def __init__(
        self,
        writer: JournalWriter,
        store: TransactionStore,
        call_later: CallLater,
        run_in_worker: RunInWorker,
        stored: Callable[[Transaction], None],
    ) -> None:
        self._writer, self._store, self._stored = writer, store, stored
        self._call_later, self._run_in_worker = call_later, run_in_worker
        self._stalled: list[_Stalled] = []
        self._todo: deque[_Stalled] = deque()
        self._blocked: set[PartitionKey] = set()
        self._timer: Timer | None = None
        self._under_way = self._stopped = False
        self._delay_s = RETRY_S

    def transactions(self) -> list[Transaction]:
        """Return the waiting transactions in the order of their commits."""
        return [each.transaction for each in self._stalled if each.is_tried]

    def before(self, partition_key: PartitionKey) -> StalledBefore | None:
        """Return why nothing may be appended to a partition now: it does not have an earlier transaction's messages."""
        for each in self._stalled:
            if partition_key in each.left:
                return StalledBefore(each.reason)
        return None

    def failed(self, transaction: Transaction, partition_key: PartitionKey, failure: StorageFailed) -> None:
        """Let later commits to a partition wait, although other partitions of this transaction have not ended yet."""
        self._note(transaction, failure).left.add(partition_key)

    def _note(self, transaction: Transaction, failure: StorageFailed) -> _Stalled:
        for each in self._stalled:
            if each.transaction is transaction:
                return each
        self._stalled.append(_Stalled(transaction, failure.reason))
        return self._stalled[-1]

    def add(self, transaction: Transaction, failures: Failures, *, unsure: bool = False) -> None:
        """Try a transaction again later. ``unsure``: some of its messages may be in the partitions."""
        each = self._note(transaction, next(iter(failures.values())))
        each.left, each.is_tried = set(failures), True
        each.unsure = {key for key, failure in failures.items() if unsure or not _left_nothing(failure)}
        self._arm()

    def stop(self) -> None:
        """Stop retrying: the journal is about to close. The next start finishes what is left."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    # ---- rounds

    def _arm(self) -> None:
        if self._timer is None and not self._under_way and not self._stopped:
            self._timer = self._call_later(self._delay_s, self._begin_round)

    def _begin_round(self) -> None:
        self._timer, self._under_way = None, True
        self._delay_s = min(2 * self._delay_s, RETRY_S_MAX)
        self._todo = deque(self._stalled)
        self._blocked.clear()
        self._next()

    def _next(self) -> None:
        """Retry the next transaction whose partitions no earlier stalled transaction needs."""
        while self._todo and not self._stopped:
            each = self._todo.popleft()
            if each.is_tried and each.left.isdisjoint(self._blocked):
                job = self._writer.begin_read(each.transaction)
                self._run_in_worker(job.run, partial(self._read, each, job))
                return
            self._blocked |= each.left
        self._under_way = False
        if self._stalled:
            self._arm()
        else:
            self._delay_s = RETRY_S

    def _read(self, stalled: _Stalled, job: JournalRead, error: BaseException | None) -> None:
        units = self._writer.end_read(job)
        if self._stopped:
            return
        if error is not None:
            reason = str(error) if isinstance(error, Exception) else repr(error)
            self._tried(stalled, dict.fromkeys(stalled.left, StorageFailed(reason)))
            return
        left = [group for group in units if group[0].partition_key in stalled.left]
        known = [group for group in left if group[0].partition_key not in stalled.unsure]
        unsure = [group for group in left if group[0].partition_key in stalled.unsure]
        try:
            unsure = list(missing_units(unsure, stalled.transaction.ends, self._store)) if unsure else []
        except (MetaqError, OSError) as fault:
            self._tried(stalled, dict.fromkeys(stalled.left, StorageFailed(str(fault))))
            return
        append_units(self._store, [*known, *unsure], partial(self._tried, stalled))

    def _tried(self, stalled: _Stalled, failures: Failures) -> None:
        transaction = stalled.transaction
        if self._stopped:
            return
        stalled.left = set(failures)
        stalled.unsure |= {key for key, failure in failures.items() if not _left_nothing(failure)}
        if failures:
            self._blocked |= stalled.left
            stalled.reason = next(iter(failures.values())).reason
            transaction.failure = CommittedNotStored(transaction.key, stalled.reason)
        else:
            self._stalled.remove(stalled)
            self._delay_s = RETRY_S
            transaction.failure = None
            _LOG.warning("transaction %s is readable now", transaction.key)
            self._stored(transaction)
        self._next()
