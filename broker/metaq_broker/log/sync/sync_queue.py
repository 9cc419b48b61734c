"""The callbacks that wait until appended bytes are durable, and the one sync that runs for all of them.

The steps of an append, on the event loop unless noted::

    append       the bytes are written; the callback that waits for their end is appended to ``waiters``
    take         bytes that are not durable yet are captured as a job ...
    (any thread) ... which is run; later appends wait for the next one
    finish       ``complete_sync`` moves the durable end, and callbacks at or below it are called, oldest first; after a
                 failed sync all of them, with the reason

Partitions (``group_commit.py``) and the journal of transactions (``transactions/group_sync.py``) use it. They differ in
when a sync begins, and in where its job is run. ``start`` is ``take`` and the run.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

OnDurable = Callable[[Exception | None], None]
"""Called once: with ``None`` when the appended bytes are durable, or with the reason why they never will be."""

Job = TypeVar("Job")
Argument = TypeVar("Argument")


class Syncable(Protocol[Job]):
    """A log that is appended to and synced: of a partition, or the journal."""

    def pending_sync(self) -> Job | None:
        """Return a job that makes everything durable; ``None`` if there is nothing to do, or a sync has failed."""

    def complete_sync(self, job: Job, error: OSError | None, /) -> int | Exception:
        """Record how a job ended; return the offset below which everything is durable, or the failure after which
        nothing more will be.
        """


class SyncQueue(Generic[Job]):
    """``run(queue, job)`` runs a job in a thread and then calls ``queue.finish``."""

    __slots__ = ("_run", "_source", "under_way", "waiters")

    def __init__(self, source: Syncable[Job], run: Callable[[Any, Job], None]) -> None:
        self._source, self._run = source, run
        self.waiters: deque[tuple[int, OnDurable]] = deque()
        """(end offset, callback), oldest first."""
        self.under_way = False
        """Whether a sync is running."""

    def start(self) -> bool:
        """Begin a sync, unless one is running or everything is synced; return whether one is running now."""
        if (job := self.take()) is not None:
            self._run(self, job)
        return self.under_way

    def take(self) -> Job | None:
        """Return the job of a sync that begins now, for a caller that runs it and calls ``finish``; else ``None``."""
        if self.under_way or (job := self._source.pending_sync()) is None:
            return None
        self.under_way = True
        return job

    def finish(self, job: Job, error: OSError | None) -> None:
        """Record how the sync ended, and call the waiting callbacks."""
        self.under_way = False
        waiters, reached = self.waiters, self._source.complete_sync(job, error)
        end, failure = (math.inf, reached) if isinstance(reached, Exception) else (reached, None)
        while waiters and waiters[0][0] <= end:
            call(waiters.popleft()[1], failure)


async def outcome(when: Callable[[OnDurable], None]) -> Exception | None:
    """Wait for the one call of the callback that is passed to ``when``; return its argument."""
    called: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def note(failure: Exception | None) -> None:
        if not called.done():  # who waits may have been cancelled
            called.set_result(failure)

    when(note)
    return await called


def call(callback: Callable[[Argument], None], argument: Argument) -> None:
    """Call a callback. What it raises, which is a bug, is reported to the event loop: others get their answer."""
    try:
        callback(argument)
    except Exception as fault:
        context = {"message": "a durability callback failed", "exception": fault}
        asyncio.get_running_loop().call_exception_handler(context)
