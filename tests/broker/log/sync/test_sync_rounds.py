"""Syncs of one disk go in rounds, and one that takes long holds up no other for more than a moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.sync import group_commit
from metaq_broker.log.sync.group_commit import GroupCommit
from stored import ONE_SEGMENT, START_MS, QuickFiles, frames
from waiting import until

DEADLINE_S = 60.0


class Gates(QuickFiles):
    """A disk on which each sync waits until its file's gate is opened."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self._gates: dict[int, threading.Semaphore] = {}

    def fdatasync(self, fd: int) -> None:
        self.started.append(fd)
        assert self._gate(fd).acquire(timeout=DEADLINE_S)

    def open_gate(self, fd: int, count: int = 1) -> None:
        self._gate(fd).release(count)

    def _gate(self, fd: int) -> threading.Semaphore:
        return self._gates.setdefault(fd, threading.Semaphore(0))


class Partitions:
    """Logs of partitions ``0``, ``1``, ... in one data folder, and what was acknowledged of them, in order."""

    def __init__(self, folder: Path, count: int, *, folders: int = 1) -> None:
        self.files, self.commit = Gates(), GroupCommit()
        self.logs: list[PartitionLog] = []
        for number in range(count):
            data = folder / str(number % folders)
            data.mkdir(exist_ok=True)
            clock = ManualClock(START_MS)
            self.logs.append(PartitionLog.open(self.files, clock, data / f"t-{number}", ONE_SEGMENT))
        self.files.started.clear()
        self.reported: list[int] = []

    def put(self, *numbers: int) -> None:
        for number in numbers:
            log = self.logs[number]
            log.append(frames(1, number))
            self.commit.wait(log, log.end_offset, lambda error, number=number: self._done(number, error))  # type: ignore[misc]

    def _done(self, number: int, error: Exception | None) -> None:
        assert error is None
        self.reported.append(number)

    def let(self, *numbers: int) -> None:
        for number in numbers:
            self.files.open_gate(self.fd(number))

    def fd(self, number: int) -> int:
        handle = self.logs[number].active.handle
        assert handle is not None
        return handle.fd

    @property
    def started(self) -> list[int]:
        """Partitions whose syncs have begun so far, those of a round in any order."""
        fds = [self.fd(number) for number in range(len(self.logs))]
        return [fds.index(fd) for fd in self.files.started]

    async def end(self) -> None:
        for number in range(len(self.logs)):
            self.files.open_gate(self.fd(number), 10)
        await self.commit.drain()
        self.commit.stop()


def play(partitions: Partitions, story: Callable[[Partitions], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        try:
            await story(partitions)
        finally:
            await partitions.end()

    asyncio.run(scenario())


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing counts as late."""
    monkeypatch.setattr(group_commit, "LATE_S", 3600.0)


@pytest.mark.usefixtures("patient")
def test_what_becomes_due_during_a_round_starts_together_when_it_has_ended(tmp_path: Path) -> None:
    async def story(partitions: Partitions) -> None:
        partitions.put(0, 1)
        await until(lambda: sorted(partitions.started) == [0, 1])
        partitions.put(0, 2)
        await asyncio.sleep(0)
        partitions.put(3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(partitions.started) == 2
        partitions.let(0, 1)
        await until(lambda: len(partitions.started) == 5)
        assert sorted(partitions.reported) == [0, 1]
        assert sorted(partitions.started[2:]) == [0, 2, 3]
        partitions.let(0, 2, 3)
        await until(lambda: sorted(partitions.reported[2:]) == [0, 2, 3])

    play(Partitions(tmp_path, 4), story)


@pytest.mark.usefixtures("patient")
def test_those_of_a_round_are_notified_in_one_step_of_the_loop(tmp_path: Path) -> None:
    async def story(partitions: Partitions) -> None:
        partitions.put(0, 1, 2)
        await until(lambda: len(partitions.started) == 3)
        partitions.let(0, 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert partitions.reported == []
        partitions.let(1)
        await until(lambda: bool(partitions.reported))
        assert sorted(partitions.reported) == [0, 1, 2]

    play(Partitions(tmp_path, 3), story)


@pytest.mark.usefixtures("patient")
def test_disks_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async def story(partitions: Partitions) -> None:
        partitions.put(0)
        await until(lambda: partitions.started == [0])
        partitions.put(1)
        await until(lambda: partitions.started == [0, 1])
        partitions.let(1)
        await until(lambda: partitions.reported == [1])

    play(Partitions(tmp_path, 2, folders=2), story)


def test_a_sync_that_takes_long_holds_up_no_other(tmp_path: Path) -> None:
    async def story(partitions: Partitions) -> None:
        partitions.put(0, 1)
        await until(lambda: len(partitions.started) == 2)
        partitions.put(2)
        partitions.let(1)
        await until(lambda: partitions.reported == [1])
        await until(lambda: sorted(partitions.started) == [0, 1, 2])
        partitions.let(2)
        await until(lambda: partitions.reported == [1, 2])
        partitions.let(0)
        await until(lambda: partitions.reported == [1, 2, 0])

    play(Partitions(tmp_path, 3), story)
