"""Group commit: many appends share one fsync, and callbacks say when bytes may be acknowledged.

Life of an append, all on the event loop unless noted::

    append, wait(log, end)     the partition is noted; at the end of this turn of the loop its sync is captured ...
    (worker thread)            ... and run; what is appended meanwhile rides in the next one
    complete                   readable_end moves, waiters at or below it are called in their order, and if more was
                               appended meanwhile the next sync starts at once

At most one sync per partition is under way, at most ``workers`` in all. All completions that have happened by the time
the loop looks cost it one wake-up. With a threshold (``unflush_threshold`` > 0) ``wait`` calls back in the next round
of the loop, and a sync starts when more messages than that are not durable, or ``flush_interval_ms`` after the first
of them, or as soon as somebody asks for ``wait_durable``. Source: docs/operations.md, "What an acknowledgement
means".
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from metaq_broker.histogram import SECONDS, Histogram
from metaq_broker.storage.errors import LogFailed
from metaq_broker.storage.partition_log import PartitionLog
from metaq_broker.storage.sync import SyncJob

OnDurable = Callable[[Exception | None], None]
OnReadable = Callable[[int], None]
"""Called with the new readable end of a partition."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When a topic's messages are acknowledged and synced.

    ``unflush_threshold`` <= 0: acknowledged after the sync. Otherwise acknowledged after the write, and synced when
    more than this many messages, or the oldest of them for ``flush_interval_ms``, are not durable.
    """

    unflush_threshold: int = 0
    flush_interval_ms: int = 10_000

    @property
    def waits_for_disk(self) -> bool:
        """Whether an acknowledgement means durable."""
        return self.unflush_threshold <= 0


@dataclass(slots=True, eq=False)
class _Partition:
    """What is under way for one log. Waiters are (end offset, callback), oldest first."""

    log: PartitionLog
    policy: FlushPolicy
    waiters: deque[tuple[int, OnDurable]] = field(default_factory=deque)
    due: bool = False
    syncing: bool = False
    timer: asyncio.TimerHandle | None = None
    settling: list[asyncio.Future[None]] = field(default_factory=list)

    def stop_timer(self) -> None:
        """Let the timer, if there is one, not fire."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class GroupCommit:
    """See the module. Used on one event loop, from the first call of ``schedule`` or ``wait`` until ``stop``."""

    def __init__(
        self, policy_for: Callable[[str], FlushPolicy] = lambda topic: FlushPolicy(), *, workers: int = 4
    ) -> None:
        if workers < 1:
            raise ValueError(f"{workers} sync workers: expected 1 or more")
        self.sync_seconds = Histogram(SECONDS)
        """How long syncs took, failed ones included."""
        self._policy_for = policy_for
        self._workers_max = workers
        self._partitions: dict[PartitionLog, _Partition] = {}
        self._watchers: dict[tuple[str, int], list[OnReadable]] = {}
        self._due: list[_Partition] = []
        self._jobs: SimpleQueue[tuple[_Partition, SyncJob] | None] = SimpleQueue()
        self._done: deque[tuple[_Partition, SyncJob, float, OSError | None]] = deque()
        self._wake_lock = threading.Lock()
        self._waking = False
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        self._idle: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- what the engine calls

    def schedule(self, log: PartitionLog) -> None:
        """Take note that something was appended to ``log``."""
        self._schedule(self._partitions.get(log) or self._new(log))

    def _schedule(self, partition: _Partition) -> None:
        log, policy = partition.log, partition.policy
        if partition.due or partition.syncing:
            return
        if policy.waits_for_disk or log.unflushed_messages > policy.unflush_threshold:
            self._make_due(partition)
        elif partition.timer is None:
            seconds = policy.flush_interval_ms / 1000
            partition.timer = self._running_loop().call_later(seconds, self._make_due, partition)

    def wait(self, log: PartitionLog, end_offset: int, callback: OnDurable) -> None:
        """Note an append that ends at ``end_offset``; call back with ``None`` once it may be acknowledged, or why not.

        Never calls back before returning. Callbacks of one log are called in the order of the waits; offsets ascend.
        """
        partition = self._partitions.get(log) or self._new(log)
        self._schedule(partition)
        if not partition.policy.waits_for_disk or log.readable_end >= end_offset:
            self._running_loop().call_soon(callback, None)
        elif log.sync_failed:
            self._running_loop().call_soon(callback, _lost(log))
        else:
            partition.waiters.append((end_offset, callback))

    def wait_durable(self, log: PartitionLog, end_offset: int, callback: OnDurable) -> None:
        """As ``wait``, but durable and readable in every mode: with a threshold a sync starts for it.

        Transactions need it, because a commit is a promise that no policy softens. May call back before it returns.
        """
        partition = self._partitions.get(log) or self._new(log)
        self._schedule(partition)
        if log.readable_end >= end_offset:
            callback(None)
        elif log.sync_failed:
            callback(_lost(log))
        else:
            partition.waiters.append((end_offset, callback))
            if not partition.policy.waits_for_disk and not partition.due and not partition.syncing:
                self._make_due(partition)  # the threshold and the timer would take their time

    def watch(self, topic: str, index: int, callback: OnReadable) -> Callable[[], None]:
        """Call ``callback`` whenever the readable end of a partition, there or not yet, moves up.

        Return what ends it.
        """
        callbacks = self._watchers.setdefault((topic, index), [])
        callbacks.append(callback)

        def end() -> None:
            callbacks.remove(callback)
            if not callbacks:
                self._watchers.pop((topic, index), None)

        return end

    async def drain(self) -> None:
        """Sync all appended bytes, and return when no sync is in progress and no callback waits."""
        while True:
            for partition in self._partitions.values():
                if not partition.syncing and not partition.due:
                    self._make_due(partition)
            self._start_due()
            if not self._under_way:
                return
            self._idle = asyncio.Event()
            await self._idle.wait()

    async def settle(self, log: PartitionLog) -> None:
        """Return when all of ``log`` is durable, or its disk has failed, and no sync of it is under way."""
        partition = self._partitions.get(log) or self._new(log)
        while True:
            self._start(partition)
            if not partition.syncing:
                return
            partition.settling.append(self._running_loop().create_future())
            await partition.settling[-1]

    def policies_changed(self) -> None:
        """Read the policy of every partition again. Waiting callbacks still wait for their sync."""
        for partition in self._partitions.values():
            policy = self._policy_for(partition.log.topic)
            if policy != partition.policy:
                partition.policy = policy
                partition.stop_timer()
                if partition.log.unflushed_messages:
                    self.schedule(partition.log)

    def stop(self) -> None:
        """End the worker threads after the syncs that are under way (blocking). Call ``drain`` first."""
        for partition in self._partitions.values():
            partition.stop_timer()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def forget(self, log: PartitionLog) -> None:
        """Drop what is kept about a log that is settled and gets no more appends."""
        partition = self._partitions.pop(log, None)
        if partition is not None:
            partition.stop_timer()

    # ---- starting syncs

    def _new(self, log: PartitionLog) -> _Partition:
        partition = _Partition(log, self._policy_for(log.topic))
        self._partitions[log] = partition
        return partition

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _make_due(self, partition: _Partition) -> None:
        partition.stop_timer()
        partition.due = True
        if not self._due:
            self._running_loop().call_soon(self._start_due)
        self._due.append(partition)

    def _start_due(self) -> None:
        due, self._due = self._due, []
        for partition in due:
            partition.due = False
            self._start(partition)

    def _start(self, partition: _Partition) -> None:
        if partition.syncing:
            return
        job = partition.log.pending_sync()
        if job is None:
            return
        partition.syncing = True
        self._under_way += 1
        self._running_loop()  # the worker needs it
        if len(self._threads) < min(self._workers_max, self._under_way):
            thread = threading.Thread(target=self._work, name=f"metaq-sync-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((partition, job))

    # ---- worker threads

    def _work(self) -> None:
        clock = self._running_loop().time
        while (item := self._jobs.get()) is not None:
            partition, job = item
            started = clock()
            error: OSError | None = None
            try:
                job.run()
            except OSError as failure:
                error = failure
            except Exception as failure:  # a defect must not leave the partition waiting for ever
                error = OSError(f"the sync broke off: {failure!r}")
            self._done.append((partition, job, clock() - started, error))
            with self._wake_lock:
                wake, self._waking = not self._waking, True
            if wake:
                self._running_loop().call_soon_threadsafe(self._complete_all)

    # ---- completions

    def _complete_all(self) -> None:
        with self._wake_lock:
            self._waking = False
        while self._done:
            partition, job, seconds, error = self._done.popleft()
            self.sync_seconds.observe(seconds)
            self._synced(partition, job, error)

    def _synced(self, partition: _Partition, job: SyncJob, error: OSError | None) -> None:
        """A sync has ended, before callbacks run. A subclass may delay the end of a successful one."""
        self._end(partition, job, error)

    def _end(self, partition: _Partition, job: SyncJob, error: OSError | None) -> None:
        partition.syncing = False
        self._under_way -= 1
        before = partition.log.readable_end
        partition.log.complete_sync(job, error)
        self._notify_waiters(partition)
        if self._watchers and partition.log.readable_end > before:
            self._notify_watchers(partition.log)
        self._go_on(partition)
        settling, partition.settling = partition.settling, []
        for future in settling:
            if not future.done():
                future.set_result(None)
        if not self._under_way and self._idle is not None:
            self._idle.set()

    def _notify_watchers(self, log: PartitionLog) -> None:
        for callback in list(self._watchers.get((log.topic, log.index), ())):
            self._call(partial(callback, log.readable_end))

    def _notify_waiters(self, partition: _Partition) -> None:
        log, waiters = partition.log, partition.waiters
        while waiters and waiters[0][0] <= log.readable_end:
            self._call(partial(waiters.popleft()[1], None))
        while waiters and log.sync_failed:
            self._call(partial(waiters.popleft()[1], _lost(log)))

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as failure:
            context = {"message": "a durability callback failed", "exception": failure}
            self._running_loop().call_exception_handler(context)

    def _go_on(self, partition: _Partition) -> None:
        """Start the next sync if there is reason to: what was appended meanwhile waits for nothing else."""
        if partition.waiters or partition.policy.waits_for_disk:
            self._start(partition)
        elif partition.log.unflushed_messages:
            self.schedule(partition.log)


def _lost(log: PartitionLog) -> LogFailed:
    return LogFailed(log.directory.name, log.failure or "its sync failed")
