"""Group commit of the journal: one fsync in flight, everything written meanwhile rides in the next.

What waits for an fsync depends on the durability mode, and only this file knows it: callers always say "when what I
just wrote is durable", and in the modes 0 and 2 that is at once, by the operator's choice.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from metaq_broker.transactions.interfaces import CallLater, Durability, RunInWorker, Timer
from metaq_broker.transactions.journal import Journal, JournalFailed, JournalSync

_log = logging.getLogger(__name__)

EARLY_BYTES: Final = 8 << 20
"""At this many unsynced bytes, an fsync starts although no request waits, so that PREPARE waits for less."""

SECOND_S: Final = 1.0
"""How long mode 2 lets written records wait for their fsync."""

WhenDurable = Callable[[JournalFailed | None], None]


class GroupSync:
    """Drives the fsyncs of one journal. Callbacks fire in the order of their records."""

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
        self._waiting: deque[tuple[int, WhenDurable]] = deque()
        self._timer: Timer | None = None
        self._closed = False

    def close(self) -> None:
        """Forget everybody who waits: their connections are gone already."""
        self._closed = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def when_durable(self, callback: WhenDurable) -> None:
        """Call back when everything written until now is as durable as the mode asks, or can never be.

        In the modes 0 and 2 the callback runs before this returns.
        """
        if self._durability is Durability.COMMIT:
            self.when_on_disk(callback)
            return
        if self._durability is Durability.SECOND:
            self._sync_within_a_second()
        callback(None)

    def when_on_disk(self, callback: WhenDurable) -> None:
        """Call back when everything written until now is on the disk, whatever the mode, or can never be."""
        if self._journal.failure is not None:
            callback(JournalFailed(self._journal.failure))
        elif self._journal.durable_lsn >= self._journal.end_lsn:
            callback(None)
        else:
            self._waiting.append((self._journal.end_lsn, callback))
            self._start()

    def start_early(self) -> None:
        """To be called after an append: lets large transactions become durable while their messages still come in."""
        unsynced = self._journal.end_lsn - self._journal.durable_lsn
        if self._durability is Durability.COMMIT and unsynced >= self._early_bytes:
            self._start()

    def _sync_within_a_second(self) -> None:
        if self._timer is None:
            self._timer = self._call_later(SECOND_S, self._second_passed)

    def _second_passed(self) -> None:
        self._timer = None
        self.when_on_disk(_nothing)

    def _start(self) -> None:
        job = self._journal.pending_sync()
        if job is not None:
            self._run_in_worker(job.run, lambda error: self._finished(job, error))

    def _finished(self, job: JournalSync, error: BaseException | None) -> None:
        self._journal.complete_sync(job, error)
        if self._closed:
            return
        if self._journal.failure is not None:
            self._refuse_all(JournalFailed(self._journal.failure))
            return
        while self._waiting and self._waiting[0][0] <= self._journal.durable_lsn:
            self._waiting.popleft()[1](None)
        if self._waiting:
            self._start()
        else:
            self.start_early()

    def _refuse_all(self, failure: JournalFailed) -> None:
        while self._waiting:
            self._waiting.popleft()[1](failure)


def _nothing(failure: JournalFailed | None) -> None:
    """Nobody waits for this fsync; the journal has logged its failure."""
