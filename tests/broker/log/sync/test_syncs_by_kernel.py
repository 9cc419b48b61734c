"""Syncs that the kernel runs: what is acknowledged, and when, is the same as with threads; failures are, too."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog
from metaq_broker.log.sync.flush import GroupCommit
from metaq_broker.log.sync.kernel_syncs import KernelSyncs
from stored import START_MS, QuickFiles, SyncBench, frames, played
from waiting import until

SETTINGS = LogSettings(index_interval_bytes=1 << 20)
"""No entries of the index are due."""


class Files(QuickFiles):
    """Counts syncs that a thread, or the loop, ran."""

    def __init__(self) -> None:
        self.syncs = 0

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1


class Kernel:
    """Syncs that end when the test says so, with an error number or 0."""

    def __init__(self) -> None:
        self.under_way: list[int] = []
        self.takes = True
        self.is_closed = False
        self._ended: list[tuple[int, int]] = []
        self._events = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._events

    def submit(self, descriptor: int, token: int, /) -> bool:
        assert os.fstat(descriptor).st_size
        if self.takes:
            self.under_way.append(token)
        return self.takes

    def end(self, token: int, number: int = 0) -> None:
        self.under_way.remove(token)
        self._ended.append((token, number))
        os.eventfd_write(self._events, 1)

    def take(self) -> list[tuple[int, int]]:
        os.eventfd_read(self._events)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        assert not self.under_way
        self.is_closed = True
        os.close(self._events)


class Bench(SyncBench):
    def __init__(self, root: Path) -> None:
        self.files, self.kernel = Files(), Kernel()
        super().__init__(root, self.files, GroupCommit(kernel=lambda: self.kernel))

    def log(self, name: str) -> PartitionLog:
        made = self.open(self.root / name, SETTINGS)
        self.files.syncs = 0
        return made


def play(root: Path, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> Bench:
    return played(Bench(root), scenario)


def test_the_kernel_syncs_and_no_thread_does(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        log = bench.log("t-0")
        bench.put(log)
        assert len(bench.kernel.under_way) == 1
        await asyncio.sleep(0.01)
        assert bench.reported == []
        bench.kernel.end(1)
        await until(lambda: bench.reported == [("t-0", None)])

    bench = play(tmp_path, scenario)
    assert bench.files.syncs == 0
    assert bench.kernel.is_closed


def test_those_of_a_round_are_answered_together_when_the_last_has_ended(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        logs = [bench.log(f"t-{number}") for number in range(3)]
        bench.put(*logs)
        assert len(bench.kernel.under_way) == 3
        for token in (3, 1):
            bench.kernel.end(token)
            await asyncio.sleep(0.005)
            assert bench.reported == []
        bench.put(logs[0])
        assert bench.kernel.under_way == [2], "it waits for the next round"
        bench.kernel.end(2)
        await until(lambda: len(bench.reported) == 3)
        bench.kernel.end(*bench.kernel.under_way)
        await until(lambda: len(bench.reported) == 4)

    play(tmp_path, scenario)


def test_one_that_takes_long_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.put(bench.log("t-0"), bench.log("t-1"))
        bench.kernel.end(1)
        await until(lambda: bench.reported == [("t-0", None)])
        bench.kernel.end(2)
        await until(lambda: len(bench.reported) == 2)

    play(tmp_path, scenario)


def test_a_failed_sync_is_never_tried_again_nor_acknowledged(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        log = bench.log("t-0")
        durable_end = log.readable_end
        bench.put(log)
        bench.kernel.end(1, errno.EIO)
        await until(lambda: len(bench.reported) == 1)
        assert isinstance(bench.reported[0][1], LogFailed)
        assert (log.readable_end, log.sync_failed) == (durable_end, True)
        assert "durable" in (log.failure or "")
        with pytest.raises(LogFailed):
            log.append(frames(1))

    bench = play(tmp_path, scenario)
    assert bench.files.syncs == 0
    reopened = PartitionLog.open(Files(), ManualClock(START_MS), tmp_path / "t-0", SETTINGS)
    assert reopened.message_count == 1, "what was written around the failed sync is cut, as with threads"


def test_what_the_kernel_does_not_take_is_synced_by_threads(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.kernel.takes = False
        bench.put(bench.log("t-0"), bench.log("t-1"))
        await until(lambda: len(bench.reported) == 2)

    assert play(tmp_path, scenario).files.syncs == 2


def test_names_are_made_durable_by_threads(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        fresh = PartitionLog.open(bench.files, ManualClock(START_MS), tmp_path / "t-0", SETTINGS)
        bench.put(fresh)
        await until(lambda: len(bench.reported) == 1)
        assert bench.kernel.under_way == []

    assert play(tmp_path, scenario).files.syncs


def test_with_the_real_kernel_everything_is_acknowledged_in_its_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        commit = GroupCommit(kernel=KernelSyncs.open)
        reported: list[tuple[int, int, Exception | None]] = []

        def put(log: PartitionLog, number: int) -> None:
            log.append(frames(1, number))
            commit.wait(log, log.end_offset, lambda error: reported.append((log.index, number, error)))

        logs = [PartitionLog.open(QuickFiles(), ManualClock(START_MS), tmp_path / f"t-{n}", SETTINGS) for n in (0, 1)]
        for number in range(60):
            for log in logs:
                put(log, number)
            if number % 3:
                await until(lambda count=2 * number: len(reported) >= count)  # type: ignore[misc]
        await until(lambda: len(reported) == 120)
        await commit.drain()
        commit.stop()
        for log in logs:
            assert [number for index, number, _ in reported if index == log.index] == list(range(60))
            assert log.readable_end == log.end_offset
        assert {error for _, _, error in reported} == {None}

    asyncio.run(scenario())
