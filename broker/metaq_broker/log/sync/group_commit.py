"""Group commit of the partitions: decides when their syncs start, and in which threads they run.

Every partition has a ``SyncQueue``. An append makes it due; at the end of the loop's step (``LoopStep``) its sync is
captured and run in a thread, so that messages that are appended together are synced together. At most ``workers`` syncs
run at a time.

Syncs of one disk run in rounds: partitions that become due during a round wait for its end and then start together; the
loop is woken when the last sync of the round has ended. A file system does the same with syncs of several files (one
commit of its journal at a time), so waiting costs little, each sync covers more messages, and many answers are sent
together. A slow sync does not delay the others: every ``LATE_S``, finished syncs are completed and waiting ones are
started. Completions that are found together cost the loop one wake-up.

If the syncs of a disk are faster than a change of threads (``SyncTimes``), a small round runs on the loop, one sync
after the other, if somebody waits for it, and while there is only one client, so that no other client waits.

With a threshold (``unflush_threshold`` > 0) ``wait`` calls back at the end of the loop's step, and a sync starts when
more messages than that are not durable, or ``flush_interval_ms`` after the first of them, or as soon as there is a
``wait_durable`` or a ``watch``.

Source: docs/operations.md, "What an acknowledgement means"; docs/adr/0034-syncs-of-one-disk-go-in-rounds.md,
docs/adr/0036-quick-syncs-run-on-the-loop.md.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from metaq_broker.clock import Clock
from metaq_broker.histogram import SECONDS, Histogram
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.sync.sync import SyncJob
from metaq_broker.log.sync.sync_queue import OnDurable, SyncQueue, call
from metaq_broker.log.sync.sync_times import SyncTimes
from metaq_broker.loop_step import LoopStep

OnReadable = Callable[[int], None]
"""Called with the new readable end of a partition."""

LATE_S: Final = 0.05
"""Other syncs of the disk do not wait for one that takes longer."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When a topic's messages are acknowledged and synced.

    ``unflush_threshold`` <= 0: acknowledged after the sync. Otherwise acknowledged after the write, and synced when
    more than this many messages are not durable, or the oldest of them for ``flush_interval_ms``.
    """

    unflush_threshold: int = 0
    flush_interval_ms: int = 10_000

    @property
    def waits_for_disk(self) -> bool:
        return self.unflush_threshold <= 0


class _Disk:
    """A data folder: the number of running syncs, and the partitions that wait for their end.

    ``ended``: syncs that have ended in their threads and are not completed yet, guarded by a lock. ``began``: loop time
    of the last start.
    """

    __slots__ = ("began", "ended", "times", "under_way", "waiting")

    def __init__(self) -> None:
        self.under_way = self.ended = 0
        self.waiting: list[_Partition] = []
        self.times = SyncTimes()
        self.began = 0.0


class _Partition(SyncQueue[SyncJob]):
    """The state of one log."""

    __slots__ = ("disk", "due", "log", "policy", "settling", "step", "timer", "waits_for_disk")

    def __init__(self, log: PartitionLog, policy: FlushPolicy, commit: GroupCommit) -> None:
        super().__init__(log, commit._sync)
        self.log = log
        self.disk = commit._disks.setdefault(log.directory.parent, _Disk())
        self.step = LoopStep.of(asyncio.get_running_loop())
        self.follow(policy)
        self.due = False
        self.timer: asyncio.TimerHandle | None = None
        self.settling: list[asyncio.Future[None]] = []

    def follow(self, policy: FlushPolicy) -> None:
        """Apply another policy."""
        self.policy, self.waits_for_disk = policy, policy.waits_for_disk

    def stop_timer(self) -> None:
        """Cancel the timer, if there is one."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class GroupCommit:
    """Schedules and runs the syncs of all partitions.

    Used on one event loop, from the first call of ``schedule`` or ``wait`` until ``stop``. A data folder counts as a
    disk.
    """

    def __init__(
        self,
        policy_for: Callable[[str], FlushPolicy] = lambda topic: FlushPolicy(),
        *,
        workers: int = 4,
        is_client_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        """``is_client_alone`` says whether no second client would wait for a sync on the loop."""
        if workers < 1:
            raise ValueError(f"{workers} sync workers: expected 1 or more")
        self.sync_seconds = Histogram(SECONDS)
        """Durations of syncs, including failed ones."""
        self._policy_for, self._is_client_alone = policy_for, is_client_alone
        self._workers_max = workers
        self._partitions: dict[PartitionLog, _Partition] = {}
        self._watchers: dict[tuple[str, int], list[OnReadable]] = {}
        self._disks: dict[Path, _Disk] = {}
        self._due: list[_Partition] = []
        self._late: asyncio.TimerHandle | None = None
        self._jobs: SimpleQueue[tuple[_Partition, SyncJob] | None] = SimpleQueue()
        self._done: deque[tuple[_Partition, SyncJob, float, OSError | None]] = deque()
        self._lock = threading.Lock()
        self._waking = False
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        self._is_syncing = False
        self._idle: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- what the engine calls

    def schedule(self, log: PartitionLog) -> None:
        """Record an append to ``log``."""
        self._schedule(self._partitions.get(log) or self._new(log))

    def _schedule(self, partition: _Partition) -> None:
        log, policy = partition.log, partition.policy
        if partition.due or partition.under_way:
            return
        if partition.waits_for_disk or self._is_watched(log) or log.unflushed_messages > policy.unflush_threshold:
            self._make_due(partition)
        elif partition.timer is None:
            seconds = policy.flush_interval_ms / 1000
            partition.timer = asyncio.get_running_loop().call_later(seconds, self._make_due, partition)

    def _is_watched(self, log: PartitionLog) -> bool:
        return bool(self._watchers) and (log.topic, log.index) in self._watchers

    def wait(self, log: PartitionLog, end_offset: int, callback: OnDurable) -> None:
        """Wait for an append that ends at ``end_offset``; call back with ``None`` once it may be acknowledged, or the
        error.

        Never calls back before returning. Callbacks of one log are called in the order of the waits; offsets ascend.
        """
        partition = self._partitions.get(log) or self._new(log)
        self._schedule(partition)
        if not partition.waits_for_disk or log.readable_end >= end_offset:
            partition.step.at_end(partial(callback, None))
        elif log.failure is not None and isinstance(lost := log.durable_to(), Exception):
            partition.step.at_end(partial(callback, lost))
        else:
            partition.waiters.append((end_offset, callback))

    def wait_patiently(self, log: PartitionLog, end_offset: int, callback: OnDurable) -> None:
        """Like ``wait``; in a pair, the slave's disconnection is no error: the wait continues until it is back."""
        self.wait(log, end_offset, callback)

    def wait_durable(self, log: PartitionLog, end_offset: int, callback: OnDurable) -> None:
        """Like ``wait``, but call back only once the append is durable and readable; with a threshold, start a sync.

        For transactions, whose commits are durable under every policy. May call back before it returns.
        """
        partition = self._partitions.get(log) or self._new(log)
        self._schedule(partition)
        if log.readable_end >= end_offset:
            callback(None)
        elif log.failure is not None and isinstance(lost := log.durable_to(), Exception):
            callback(lost)
        else:
            partition.waiters.append((end_offset, callback))
            if not partition.waits_for_disk and not partition.due and not partition.under_way:
                self._make_due(partition)  # without waiting for the threshold or the timer

    def watch(self, topic: str, index: int, callback: OnReadable) -> Callable[[], None]:
        """Call ``callback`` whenever the readable end of a partition, which need not exist yet, moves up.

        Return a function that stops this.
        """
        callbacks = self._watchers.setdefault((topic, index), [])
        callbacks.append(callback)

        def end() -> None:
            callbacks.remove(callback)
            if not callbacks:
                self._watchers.pop((topic, index), None)

        return end

    async def drain(self) -> None:
        """Sync all appended bytes, and return when no sync is running and no callback waits."""
        while True:
            for partition in self._partitions.values():
                if not partition.under_way and not partition.due:
                    self._make_due(partition)
            self._start_due()
            if not self._under_way:
                return
            self._idle = asyncio.Event()
            await self._idle.wait()

    async def settle(self, log: PartitionLog) -> None:
        """Return when all of ``log`` is durable, or its disk has failed, and no sync of it is running."""
        partition = self._partitions.get(log) or self._new(log)
        while True:
            if not partition.start():
                return
            partition.settling.append(asyncio.get_running_loop().create_future())
            await partition.settling[-1]

    def settle_alone(self, log: PartitionLog, reason: str) -> None:
        """Fail everything of ``log`` that waits for the other broker of a pair, with ``reason``; nothing does here.

        For a log that is removed.
        """

    def policies_changed(self) -> None:
        """Read the policies of all partitions again. Waiting callbacks still wait for their sync."""
        for partition in self._partitions.values():
            policy = self._policy_for(partition.log.topic)
            if policy != partition.policy:
                partition.follow(policy)
                partition.stop_timer()
                if partition.log.unflushed_messages:
                    self.schedule(partition.log)

    def stop(self) -> None:
        """End the worker threads after the running syncs (blocking). Call ``drain`` first."""
        for partition in self._partitions.values():
            partition.stop_timer()
        if self._late is not None:
            self._late.cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def forget(self, log: PartitionLog) -> None:
        """Forget a log that is settled and gets no more appends."""
        partition = self._partitions.pop(log, None)
        if partition is not None:
            partition.stop_timer()

    # ---- starting syncs

    def _new(self, log: PartitionLog) -> _Partition:
        partition = _Partition(log, self._policy_for(log.topic), self)
        self._partitions[log] = partition
        return partition

    def _make_due(self, partition: _Partition) -> None:
        if partition.timer is not None:
            partition.stop_timer()
        partition.due = True
        if not self._due:
            partition.step.at_end(self._start_due)
        self._due.append(partition)

    def _start_due(self) -> None:
        due, self._due = self._due, []
        if due and not self._under_way and self._are_quick(due):
            self._start_here(due)
            return
        for partition in due:
            partition.disk.waiting.append(partition)
        for partition in due:
            if not partition.disk.under_way:  # else in the next round
                self._start_waiting(partition.disk)

    def _start_waiting(self, disk: _Disk) -> None:
        waiting, disk.waiting = disk.waiting, []
        for partition in waiting:
            partition.due = False
            if (job := partition.take()) is not None:
                self._sync(partition, job)

    def _are_quick(self, due: list[_Partition]) -> bool:
        disk = due[0].disk
        if self._is_syncing or not disk.times.are_quick(len(due), Clock.monotonic()) or not self._is_client_alone():
            return False
        is_awaited = False
        for partition in due:
            if partition.disk is not disk:
                return False
            is_awaited = is_awaited or bool(partition.waiters) or self._is_watched(partition.log)
        return is_awaited

    def _start_here(self, due: list[_Partition]) -> None:
        """Sync partitions on the loop, including the work of a completion."""
        jobs: list[tuple[_Partition, SyncJob]] = []
        are_small = True
        for partition in due:
            partition.due = False
            if (job := partition.take()) is not None:
                jobs.append((partition, job))
                are_small = are_small and job.is_small
        if not are_small:
            for partition, job in jobs:
                self._sync(partition, job)
            return
        self._is_syncing = True  # appends in a callback are synced in a thread: this must terminate
        self._under_way = len(jobs)
        try:
            ended = [(partition, job, *self._run(job)) for partition, job in jobs]
            for partition, job, seconds, error in ended:
                partition.disk.times.took_on_loop(seconds, Clock.monotonic(), failed=error is not None)
                self.sync_seconds.observe(seconds)
                self._synced(partition, job, error)
            self._start_due()  # what was appended meanwhile
        finally:
            self._is_syncing = False

    def _sync(self, partition: _Partition, job: SyncJob) -> None:
        disk = partition.disk
        self._under_way += 1
        disk.under_way += 1
        disk.began = Clock.monotonic()
        self._loop = asyncio.get_running_loop()
        if self._late is None:
            self._late = self._loop.call_later(LATE_S, self._look_after_late)
        if len(self._threads) < min(self._workers_max, self._under_way):
            thread = threading.Thread(target=self._work, name=f"metaq-sync-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((partition, job))

    def _run(self, job: SyncJob) -> tuple[float, OSError | None]:
        """Run a job (blocking; any thread); return its duration in seconds, and its error."""
        started = Clock.monotonic()
        error: OSError | None = None
        try:
            job.run()
        except OSError as failure:
            error = failure
        except Exception as failure:  # a bug must not leave the partition waiting forever
            error = OSError(f"the sync broke off: {failure!r}")
        return Clock.monotonic() - started, error

    # ---- worker threads

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            partition, job = item
            self._done.append((partition, job, *self._run(job)))
            with self._lock:
                disk = partition.disk
                disk.ended += 1
                is_last = disk.ended >= disk.under_way or len(self._done) >= self._workers_max
                wake = is_last and not self._waking
                self._waking |= wake
            if wake:
                assert self._loop is not None  # it has started this sync
                self._loop.call_soon_threadsafe(partition.step.run, self._complete_all)

    # ---- completions

    def _complete_all(self) -> None:
        with self._lock:
            self._waking = False
        disks: set[_Disk] = set()
        while self._done:
            partition, job, seconds, error = self._done.popleft()
            disk = partition.disk
            with self._lock:
                disk.ended -= 1
            disk.under_way -= 1
            disks.add(disk)
            disk.times.took(seconds, failed=error is not None)
            self.sync_seconds.observe(seconds)
            self._synced(partition, job, error)
        self._start_due()  # what was appended meanwhile
        for disk in disks:
            if disk.waiting and not disk.under_way:
                self._start_waiting(disk)

    def _look_after_late(self) -> None:
        """Complete finished syncs, and start waiting ones, while a slow sync is running."""
        self._late = None
        LoopStep.of(asyncio.get_running_loop()).run(self._complete_all)
        if self._under_way:
            now = Clock.monotonic()
            for disk in self._disks.values():
                if disk.waiting and now - disk.began >= LATE_S:
                    self._start_waiting(disk)
            if self._late is None:
                self._late = asyncio.get_running_loop().call_later(LATE_S, self._look_after_late)

    def _synced(self, partition: _Partition, job: SyncJob, error: OSError | None) -> None:
        """Handle the end of a sync. A subclass may delay a successful one."""
        self._under_way -= 1
        log, before = partition.log, partition.log.readable_end
        partition.finish(job, error)
        if self._watchers and log.readable_end > before:
            self._notify_watchers(log)
        if partition.waiters or partition.waits_for_disk:
            if log.end_offset != log.readable_end and not partition.due:
                self._make_due(partition)  # for messages that were appended meanwhile
        elif log.unflushed_messages:
            self._schedule(partition)
        settling, partition.settling = partition.settling, []
        for future in settling:
            if not future.done():
                future.set_result(None)
        if not self._under_way and self._idle is not None:
            self._idle.set()

    def _notify_watchers(self, log: PartitionLog) -> None:
        for callback in list(self._watchers.get((log.topic, log.index), ())):
            call(callback, log.readable_end)
