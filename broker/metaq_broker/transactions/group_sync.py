"""Group commit of the journal: decides when its ``SyncQueue`` starts an fsync, and keeps the callbacks that wait for
it.

Whether a caller waits for an fsync depends on the durability mode, which only this file knows. In the modes 0 and 2,
the operator has chosen that callers do not wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from metaq_broker.log.sync.sync_queue import OnDurable, SyncQueue
from metaq_broker.transactions.interfaces import CallLater, Durability, RunInWorker, Timer
from metaq_broker.transactions.journal import Journal, JournalFailed, JournalSync

EARLY_BYTES: Final = 8 << 20
"""At this many unsynced bytes an fsync starts although no request waits, so that a later PREPARE waits less."""

SECOND_S: Final = 1.0
"""How long mode 2 lets written records wait for their fsync."""


class GroupSync:
    """Starts the fsyncs of one journal. Callbacks run in the order of their records."""

    def __init__(
        self,
        journal: Journal,
        durability: Durability,
        run_in_worker: RunInWorker,
        call_later: CallLater,
        early_bytes: int = EARLY_BYTES,
    ) -> None:
        self._journal = journal
        self._durability = durability
        self._run_in_worker = run_in_worker
        self._call_later = call_later
        self._early_bytes = early_bytes
        self._queue = SyncQueue(journal, self._run)
        self._timer: Timer | None = None
        self._closed = False
        self.hold: Callable[[int], None] | None = None
        """Set in a pair: called with the end of a sync that is durable here; it stays under way until ``confirm``."""
        self._held: JournalSync | None = None

    def close(self) -> None:
        """Drop all waiting callbacks: their connections are already closed."""
        self._closed = True
        self._queue.waiters.clear()
        if self._held is not None:
            self._held = None
            self._journal.abandon_sync()
        if self._timer is not None:
            self._timer.cancel()

    def when_durable(self, callback: OnDurable) -> None:
        """Call back when everything written until now is as durable as the mode requires, or has failed.

        In the modes 0 and 2 the callback runs before this returns.
        """
        if self._durability is Durability.COMMIT or self.hold is not None:
            self.when_on_disk(callback)
            return
        if self._durability is Durability.SECOND:
            self._sync_within_a_second()
        callback(None)

    def when_on_disk(self, callback: OnDurable) -> None:
        """Call back when everything written until now is on disk, in every mode, or has failed."""
        if self._journal.failure is not None:
            callback(JournalFailed(self._journal.failure))
        elif self._journal.durable_lsn >= self._journal.end_lsn:
            callback(None)
        else:
            self._queue.waiters.append((self._journal.end_lsn, callback))
            self._queue.start()

    @property
    def durable_end(self) -> int:
        """Return the LSN before which everything is durable here, whether it is confirmed or not."""
        return self._journal.durable_lsn if self._held is None else self._held.target_lsn

    def confirm(self, end: int) -> None:
        """Finish the sync that is held, if the other members have everything before ``end`` and it ends there."""
        held = self._held
        if held is not None and held.target_lsn <= end:
            self._held = None
            self._finish(held, None)

    def fence(self, reason: str) -> None:
        """Refuse everything that waits, now and from now on; ``Journal.failure`` is the reason."""
        self._journal.failure = reason
        if self._held is not None:
            self._held = None
            self._journal.abandon_sync()
        waiters, self._queue.waiters = list(self._queue.waiters), deque()
        for _, callback in waiters:
            callback(JournalFailed(reason))

    def start_early(self) -> None:
        """Start an fsync before anyone waits for it, if enough is unsynced.

        Called after each append, so that large transactions become durable while their messages still arrive.
        """
        unsynced = self._journal.end_lsn - self._journal.durable_lsn
        if self._durability is Durability.COMMIT and unsynced >= self._early_bytes:
            self._queue.start()

    def _sync_within_a_second(self) -> None:
        if self._timer is None:
            self._timer = self._call_later(SECOND_S, self._second_passed)

    def _second_passed(self) -> None:
        self._timer = None
        self.when_on_disk(_nothing)

    def _run(self, queue: SyncQueue[JournalSync], job: JournalSync) -> None:
        def finished(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, OSError):
                error = OSError(f"the sync broke off: {error!r}")
            if error is None and self.hold is not None and self._journal.failure is None:
                self._held = job
                self.hold(job.target_lsn)
            else:
                self._finish(job, error)

        self._run_in_worker(job.run, finished)

    def _finish(self, job: JournalSync, error: OSError | None) -> None:
        self._queue.finish(job, error)
        if self._closed:
            return
        if self._queue.waiters:
            self._queue.start()
        else:
            self.start_early()


def _nothing(failure: Exception | None) -> None:
    """Do nothing: no caller waits for this fsync, and the journal has logged its failure."""
