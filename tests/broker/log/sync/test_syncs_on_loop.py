"""Quick syncs run on the event loop; what is acknowledged, and when, is the same as with threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog
from metaq_broker.log.sync import group_commit
from metaq_broker.log.sync.group_commit import FlushPolicy, GroupCommit
from metaq_broker.log.sync.sync import SMALL_BYTES
from metaq_broker.log.sync.sync_times import SyncTimes
from stored import ONE_SEGMENT, QuickFiles, SyncBench, frame, frames, played
from waiting import until

AFTER_SYNC = FlushPolicy()


class Disk(QuickFiles):
    """Notes of each sync whether it ran on the loop's thread. Syncs wait for ``gate``, then fail with ``error``."""

    def __init__(self) -> None:
        self.on_loop: list[bool] = []
        self.error: OSError | None = None
        self.gate = threading.Event()
        self.gate.set()

    def fdatasync(self, fd: int) -> None:
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error


class Bench(SyncBench):
    def __init__(self, root: Path, *, is_client_alone: bool = True, policy: FlushPolicy = AFTER_SYNC) -> None:
        self.disk = Disk()
        super().__init__(root, self.disk, GroupCommit(lambda _topic: policy, is_client_alone=lambda: is_client_alone))

    def put_without_waiting(self, log: PartitionLog) -> None:
        log.append(frames(1, log.end_ordinal))
        self.commit.schedule(log)

    def log(self, name: str, folder: str = "data", settings: LogSettings = ONE_SEGMENT) -> PartitionLog:
        data = self.root / folder
        data.mkdir(exist_ok=True)
        made = self.open(data / name, settings)
        self.disk.on_loop.clear()
        return made


def play(root: Path, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> Bench:
    return played(Bench(root), scenario)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All disks are quick. Returns for how many syncs at once this was asked."""
    asked: list[int] = []

    class Quick(SyncTimes):
        def are_quick(self, count: int, now: float) -> bool:
            asked.append(count)
            return True

    monkeypatch.setattr(group_commit, "SyncTimes", Quick)
    return asked


def test_a_round_runs_on_the_loop_and_is_acknowledged_together(tmp_path: Path, quick: list[int]) -> None:
    async def scenario(bench: Bench) -> None:
        logs = [bench.log("t-0"), bench.log("t-1")]
        bench.put(*logs)
        await asyncio.sleep(0)
        assert bench.reported == [("t-0", None), ("t-1", None)]
        bench.put(logs[0])
        await asyncio.sleep(0)
        assert len(bench.reported) == 3

    assert play(tmp_path, scenario).disk.on_loop == [True] * 3
    assert quick[:2] == [2, 1]


def test_nothing_is_called_before_wait_returns(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        log = bench.log("t-0")
        log.append(frames(1))
        reported: list[Exception | None] = []
        bench.commit.wait(log, log.end_offset, reported.append)
        assert reported == []
        await asyncio.sleep(0)
        assert reported == [None]

    assert play(tmp_path, scenario).disk.on_loop == [True]


def test_what_is_appended_in_a_callback_is_synced_in_a_thread(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        log = bench.log("t-0")
        log.append(frames(1))
        reported: list[Exception | None] = []

        def again(error: Exception | None) -> None:
            reported.append(error)
            if len(reported) < 50:
                log.append(frames(1))
                bench.commit.wait(log, log.end_offset, again)

        bench.commit.wait(log, log.end_offset, again)
        await until(lambda: len(reported) == 50)
        assert reported == [None] * 50

    on_loop = play(tmp_path, scenario).disk.on_loop
    assert on_loop[:2] == [True, False]


def test_while_a_sync_is_under_way_in_a_thread_none_runs_on_the_loop(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        first, second, third = bench.log("t-0"), bench.log("t-1", "other"), bench.log("t-2")
        bench.disk.gate.clear()
        bench.put(first, second)  # of two disks: in threads
        await until(lambda: len(bench.disk.on_loop) == 2)
        bench.put(third)
        assert bench.reported == []
        bench.disk.gate.set()
        await until(lambda: len(bench.reported) == 3)

    assert not any(play(tmp_path, scenario).disk.on_loop)


def test_syncs_of_two_disks_run_side_by_side(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.put(bench.log("t-0"), bench.log("t-1", "other"))
        await until(lambda: len(bench.reported) == 2)

    assert play(tmp_path, scenario).disk.on_loop == [False] * 2


def test_beside_another_client_syncs_are_in_threads(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        log = bench.log("t-0")
        bench.put(log)
        await until(lambda: len(bench.reported) == 1)

    assert played(Bench(tmp_path, is_client_alone=False), scenario).disk.on_loop == [False]


def test_a_sync_that_nobody_waits_for_is_in_a_thread(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        log = bench.log("t-0")
        bench.put_without_waiting(log)
        await until(lambda: log.unflushed_messages == 0)
        ends: list[int] = []
        bench.commit.watch("t", 0, ends.append)
        bench.put_without_waiting(log)
        await asyncio.sleep(0)
        assert ends == [log.end_offset]

    bench = Bench(tmp_path, policy=FlushPolicy(unflush_threshold=1000, flush_interval_ms=1))
    assert played(bench, scenario).disk.on_loop == [False, True]


def test_many_bytes_become_durable_in_a_thread(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        log = bench.log("t-0")
        log.append([frame(1, b"x" * SMALL_BYTES)])
        bench.put(log)
        await until(lambda: len(bench.reported) == 1)
        bench.put(log)
        await asyncio.sleep(0)
        assert len(bench.reported) == 2

    assert play(tmp_path, scenario).disk.on_loop == [False, True]


def test_new_names_become_durable_in_a_thread(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        log = bench.log("t-0", settings=LogSettings(200, 100))
        while log.segment_count == 1:
            log.append(frames(1, log.end_ordinal))
        bench.put(log)
        await until(lambda: len(bench.reported) == 1)

    assert not any(play(tmp_path, scenario).disk.on_loop)


def test_a_sync_that_fails_on_the_loop_never_acknowledges(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        log, other = bench.log("t-0"), bench.log("t-1")
        bench.disk.error = OSError(5, "Input/output error")
        bench.put(log)
        await asyncio.sleep(0)
        bench.disk.error = None
        assert [(name, type(error)) for name, error in bench.reported] == [("t-0", LogFailed)]
        with pytest.raises(LogFailed):
            log.append(frames(1))
        bench.put(other)
        await asyncio.sleep(0)
        assert bench.reported[1:] == [("t-1", None)]

    play(tmp_path, scenario)
