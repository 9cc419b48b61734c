"""Group commit: who is told what, when, and in which order."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.sync.group_commit import FlushPolicy, GroupCommit
from stored import QuickFiles, frames, open_log
from waiting import in_loop, until

DEADLINE_S = 60.0
NEVER = FlushPolicy(unflush_threshold=1000, flush_interval_ms=3_600_000)
"""Syncs nothing by itself within a test."""


class GatedFiles(QuickFiles):
    """A disk whose syncs wait until they are let through, one by one, and may be told to fail."""

    def __init__(self) -> None:
        self.started = 0
        self.under_way = 0
        self.most_under_way = 0
        self.error: OSError | None = None
        self._gate = threading.Semaphore(0)
        self._lock = threading.Lock()

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            self.started += 1
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        assert self._gate.acquire(timeout=DEADLINE_S)
        with self._lock:
            self.under_way -= 1
        if self.error is not None:
            raise self.error

    def let(self, count: int = 1) -> None:
        self._gate.release(count)


@asynccontextmanager
async def committing(policy: FlushPolicy | None = None, *, workers: int = 4) -> AsyncIterator[GroupCommit]:
    commit = GroupCommit(lambda topic: policy or FlushPolicy(), workers=workers)
    yield commit
    await commit.drain()
    commit.stop()


class Put:
    """Appends to one log and notes what its waiters are told."""

    def __init__(self, commit: GroupCommit, log: PartitionLog) -> None:
        self.commit, self.log = commit, log
        self.count = 0
        self.reported: list[int] = []
        self.errors: list[Exception] = []
        self.durable: list[Exception | None] = []

    def __call__(self) -> None:
        number = self.count
        self.count += 1
        self.log.append(frames(1, number))
        self.commit.wait(self.log, self.log.end_offset, lambda error: self._done(number, error))

    def wait_durable(self) -> None:
        """Ask for all that was appended to be durable; the outcome is added to ``durable``."""
        self.commit.wait_durable(self.log, self.log.end_offset, self.durable.append)

    def _done(self, number: int, error: Exception | None) -> None:
        if error is None:
            self.reported.append(number)
        else:
            self.errors.append(error)


@asynccontextmanager
async def gated(folder: Path, policy: FlushPolicy | None = None) -> AsyncIterator[tuple[GatedFiles, GroupCommit, Put]]:
    """A disk whose syncs wait, a group commit, and a log on that disk to put to."""
    files = GatedFiles()
    async with committing(policy) as commit:
        put = Put(commit, open_log(folder, files=files))
        files.started = 0
        yield files, commit, put


@in_loop
async def test_one_sync_serves_all_that_came_before_it(tmp_path: Path) -> None:
    async with gated(tmp_path) as (files, _, put):
        for _ in range(50):
            put()
        assert put.reported == []
        await until(lambda: files.started == 1)
        for _ in range(50):
            put()
        files.let()
        await until(lambda: len(put.reported) == 50)
        await until(lambda: files.started == 2)
        files.let()
        await until(lambda: len(put.reported) == 100)
    assert put.reported == list(range(100))
    assert (files.started, files.most_under_way) == (2, 1)


@in_loop
async def test_nobody_is_notified_before_the_sync(tmp_path: Path) -> None:
    async with gated(tmp_path) as (files, _, put):
        put()
        await until(lambda: files.under_way == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (put.reported, put.log.readable_end) == ([], 0)
        files.let()
        await until(lambda: put.reported == [0])
        assert put.log.readable_end == put.log.end_offset


@in_loop
async def test_a_wait_for_durable_bytes_is_answered_without_a_sync(tmp_path: Path) -> None:
    async with committing() as commit:
        put = Put(commit, open_log(tmp_path))
        put()
        await until(lambda: put.reported == [0])
        reported: list[Exception | None] = []
        commit.wait(put.log, put.log.end_offset, reported.append)
        assert reported == []  # not before it has returned
        await asyncio.sleep(0)
        assert reported == [None]


@in_loop
async def test_partitions_sync_side_by_side_within_the_bound(tmp_path: Path) -> None:
    files = GatedFiles()
    async with committing(workers=3) as commit:
        puts = []
        for number in range(8):
            (tmp_path / str(number)).mkdir()
            puts.append(Put(commit, open_log(tmp_path / str(number), files=files)))
        for put in puts:
            put()
        await until(lambda: files.under_way == 3)
        files.let(8)
        await until(lambda: all(put.reported == [0] for put in puts))
    assert files.most_under_way == 3


@in_loop
async def test_a_failed_sync_is_reported_to_everybody_who_waits(tmp_path: Path) -> None:
    async with gated(tmp_path) as (files, commit, put):
        put()
        put()
        await until(lambda: files.under_way == 1)
        put()
        files.error = OSError(errno.EIO, "Input/output error")
        files.let()
        await until(lambda: len(put.errors) == 3)
        assert put.reported == []
        assert all(isinstance(error, LogFailed) and "Input/output" in str(error) for error in put.errors)
        late: list[Exception | None] = []
        commit.wait(put.log, put.log.end_offset, late.append)
        await until(lambda: len(late) == 1)
        assert isinstance(late[0], LogFailed)
        assert files.started == 1


@in_loop
async def test_after_reopening_it_goes_on(tmp_path: Path) -> None:
    async with gated(tmp_path) as (files, _, put):
        put()
        files.error = OSError(errno.EIO, "Input/output error")
        files.let()
        await until(lambda: len(put.errors) == 1)
        files.error = None
        files.let()
        await asyncio.to_thread(put.log.reopen)
        put()
        files.let()
        await until(lambda: put.reported == [1])


@in_loop
async def test_an_unexpected_defect_in_a_sync_is_an_error_not_a_hang(tmp_path: Path) -> None:
    class Broken(QuickFiles):
        def fdatasync(self, fd: int) -> None:
            raise ZeroDivisionError

    async with committing() as commit:
        put = Put(commit, open_log(tmp_path, files=Broken()))
        put()
        await until(lambda: len(put.errors) == 1)
        assert "ZeroDivisionError" in str(put.errors[0])


@in_loop
async def test_a_callback_that_raises_does_not_stop_the_others(tmp_path: Path) -> None:
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    async with committing() as commit:
        put = Put(commit, open_log(tmp_path))
        put()

        def bad(error: Exception | None) -> None:
            raise KeyError("defect")

        commit.wait(put.log, put.log.end_offset, bad)
        put()
        await until(lambda: put.reported == [0, 1])
    assert [type(fault["exception"]) for fault in faults] == [KeyError]


# ---- threshold mode


@in_loop
async def test_with_a_threshold_the_answer_comes_before_the_sync(tmp_path: Path) -> None:
    async with gated(tmp_path, FlushPolicy(unflush_threshold=5, flush_interval_ms=3_600_000)) as (files, _, put):
        for number in range(5):
            put()
            await asyncio.sleep(0)
            assert put.reported == list(range(number + 1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (files.started, put.log.readable_end) == (0, 0)
        put()
        await until(lambda: files.started == 1)
        files.let(10)
        await until(lambda: put.log.readable_end == put.log.end_offset)


@in_loop
async def test_with_a_threshold_the_timer_syncs(tmp_path: Path) -> None:
    async with committing(FlushPolicy(unflush_threshold=1000, flush_interval_ms=1)) as commit:
        put = Put(commit, open_log(tmp_path))
        for _ in range(2):
            put()
            await until(lambda: put.log.readable_end == put.log.end_offset)


@in_loop
async def test_with_a_threshold_what_comes_during_a_sync_is_not_forgotten(tmp_path: Path) -> None:
    async with gated(tmp_path, FlushPolicy(unflush_threshold=1, flush_interval_ms=1)) as (files, _, put):
        put()
        put()
        await until(lambda: files.under_way == 1)
        put()
        files.let(2)
        await until(lambda: put.log.readable_end == put.log.end_offset)


@in_loop
async def test_with_a_threshold_a_durable_put_starts_a_sync_at_once(tmp_path: Path) -> None:
    async with gated(tmp_path, NEVER) as (files, _, put):
        put()
        put.wait_durable()
        await until(lambda: files.under_way == 1)
        put()
        put.wait_durable()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (put.reported, put.durable, put.log.readable_end) == ([0, 1], [], 0)
        files.let()
        await until(lambda: put.durable == [None] and files.started == 2)
        files.let()
        await until(lambda: put.durable == [None, None])
        assert put.log.readable_end == put.log.end_offset
        put.wait_durable()
        assert put.durable == [None] * 3


@in_loop
async def test_with_a_threshold_a_durable_put_learns_of_a_failed_sync(tmp_path: Path) -> None:
    async with gated(tmp_path, NEVER) as (files, _, put):
        put()
        put.wait_durable()
        files.error = OSError(errno.EIO, "Input/output error")
        files.let()
        await until(lambda: len(put.durable) == 1)
        put.wait_durable()
        assert [type(error) for error in put.durable] == [LogFailed, LogFailed]


# ---- stopping


@in_loop
async def test_drain_makes_everything_durable(tmp_path: Path) -> None:
    for number, policy in enumerate([FlushPolicy(), FlushPolicy(1000, 3_600_000)]):
        (tmp_path / str(number)).mkdir()
        commit = GroupCommit(lambda topic, policy=policy: policy)
        put = Put(commit, open_log(tmp_path / str(number)))
        for _ in range(10):
            put()
        await commit.drain()
        assert put.reported == list(range(10))
        assert put.log.readable_end == put.log.end_offset
        commit.stop()


@in_loop
async def test_drain_waits_for_a_sync_under_way_and_the_one_after_it(tmp_path: Path) -> None:
    files = GatedFiles()
    commit = GroupCommit()
    put = Put(commit, open_log(tmp_path, files=files))
    put()
    await until(lambda: files.under_way == 1)
    put()
    draining = asyncio.create_task(commit.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    files.let(2)
    await asyncio.wait_for(draining, DEADLINE_S)
    assert put.reported == [0, 1]
    commit.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("metaq-sync")]


@in_loop
async def test_drain_with_nothing_to_do_returns(tmp_path: Path) -> None:
    commit = GroupCommit()
    await commit.drain()
    commit.schedule(open_log(tmp_path))
    await commit.drain()
    commit.stop()


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_refused(workers: int) -> None:
    with pytest.raises(ValueError, match="workers"):
        GroupCommit(workers=workers)


@in_loop
async def test_a_watcher_hears_of_every_new_readable_end_until_it_stops(tmp_path: Path) -> None:
    ends: list[int] = []
    others: list[int] = []
    async with committing() as commit:
        log = open_log(tmp_path, files=QuickFiles())
        stop = commit.watch(log.topic, log.index, ends.append)
        commit.watch(log.topic, log.index + 1, others.append)
        expected = []
        for _ in range(3):
            log.append(frames(2))
            expected.append(log.end_offset)
            commit.schedule(log)
            await commit.settle(log)
        assert (ends, others) == (expected, [])
        stop()
        log.append(frames(1))
        commit.schedule(log)
        await commit.drain()
        assert ends == expected


@in_loop
async def test_a_watcher_that_fails_disturbs_nobody(tmp_path: Path) -> None:
    def broken(end: int) -> None:
        raise ValueError("a defect")

    ends: list[int] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with committing() as commit:
        log = open_log(tmp_path, files=QuickFiles())
        commit.watch(log.topic, log.index, broken)
        commit.watch(log.topic, log.index, ends.append)
        log.append(frames(1))
        commit.schedule(log)
        await commit.drain()
        assert ends == [log.readable_end]


@in_loop
async def test_with_a_threshold_a_sync_starts_at_once_while_somebody_watches(tmp_path: Path) -> None:
    async with committing(FlushPolicy(unflush_threshold=1000, flush_interval_ms=3_600_000)) as commit:
        put, seen = Put(commit, open_log(tmp_path)), list[int]()
        put()
        await until(lambda: put.reported == [0])
        assert put.log.readable_end == 0
        end = commit.watch(put.log.topic, put.log.index, seen.append)
        put()
        await until(lambda: seen == [put.log.end_offset])
        end()
        put()
        await until(lambda: put.reported == [0, 1, 2])
        assert put.log.readable_end < put.log.end_offset
