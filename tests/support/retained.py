"""Partitions with old segments and their retention, with a clock that is moved by hand and workers without threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import stored
from fix_broker import system_section
from metaq_broker.clock import ManualClock
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.incarnation import FILE_NAME as INCARNATION
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog, Verify
from metaq_broker.log.retention.retention import Retention
from metaq_broker.operate.config.configuration import BrokerConfig, parse
from metaq_broker.testing import FaultyFiles
from stored import FOLDER, frame

SEGMENT_BYTES = 300
SETTINGS = LogSettings(segment_bytes_max=SEGMENT_BYTES, index_interval_bytes=100)
NOW_MS = 1_770_000_000_000
POLICY = {"deletePolicy": "delete,10s", "deleteWhen": "* * * * * ?"}
SYSTEM = system_section(0, 4, maxSegmentSize=300, maxTransferSize=1000, **POLICY)
ORDERS = SYSTEM + "[topic=orders]\n"


def frames(count: int, first: int = 0) -> list[bytes]:
    """Messages by their numbers; ten of them fill a segment."""
    return [frame(number, b"message %02d" % number) for number in range(first, first + count)]


def open_log(root: Path, files: Files | None = None, *, verify: Verify = "tail") -> PartitionLog:
    return stored.open_log(root, SETTINGS, files=files, verify=verify)


def rolled_log(root: Path, files: Files | None = None) -> PartitionLog:
    """A partition of four finished segments with ten messages each, and a last one with three; all durable."""
    log = open_log(root, files)
    log.append(frames(43))
    log.sync()
    assert [info.read_only for info in log.segments()] == [True] * 4 + [False]
    return log


def contents(log: PartitionLog) -> list[bytes]:
    """All that a reader gets, as frames."""
    return list(stored.contents(log).values())


def names(root: Path) -> list[str]:
    """The segment files of the partition and what became of others: no indexes, no incarnation."""
    files = (root / FOLDER).iterdir()
    return sorted(path.name for path in files if path.suffix != ".index" and path.name != INCARNATION)


async def at_once(step: Callable[[], None]) -> None:
    step()


@dataclass
class Commits:
    """Transactions that ``starts`` says are unfinished, with a journal that ``failure`` keeps from the disk."""

    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    failure: Exception | None = None
    synced: int = 0

    def needed_from(self, topic: str, partition: int) -> int | None:
        return self.starts.get((topic, partition))

    def when_on_disk(self, callback: Callable[[Exception | None], None]) -> None:
        self.synced += 1
        callback(self.failure)


@dataclass
class Harness:
    """Partitions with four finished segments each, the oldest 40 s old, the youngest 10 s; and their retention."""

    root: Path
    files: Files = field(default_factory=Files)
    run_in_worker: Callable[[Callable[[], None]], Awaitable[None]] = at_once
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    commits: Commits = field(default_factory=Commits)
    partitions: dict[tuple[str, int], PartitionLog] = field(default_factory=dict)

    def get(self, topic: str, index: int) -> PartitionLog | None:
        return self.partitions.get((topic, index))

    def logs(self) -> Iterable[PartitionLog]:
        return [self.partitions[partition_key] for partition_key in sorted(self.partitions)]

    def add(self, topic: str = "orders", index: int = 0, segments: int = 4) -> PartitionLog:
        log = PartitionLog.open(self.files, self.clock, self.root / f"{topic}-{index}", SETTINGS)
        log.append(frames(10 * segments + 3))
        log.sync()
        for partition_key, info in enumerate(log.segments()):
            written_s = NOW_MS / 1000 - 10 * (segments - partition_key)
            os.utime(info.path, (written_s, written_s))
        for segment in log.layout.segments:
            segment.written_s = None  # as if it had been before a restart
        self.partitions[topic, index] = log
        return log

    def retention(self, ini: str = ORDERS) -> Retention:
        return Retention(self.files, self.clock, config(ini), self, self.commits, self.run_in_worker)


def due_on_faulty_files(folder: Path, ini: str = ORDERS) -> tuple[FaultyFiles, Harness, PartitionLog, Retention]:
    """A partition on files that can be made to fail, all but its last segment a second old; no run yet."""
    files = FaultyFiles(folder)
    harness = Harness(folder, files)
    log = harness.add()
    retention = harness.retention(ini)
    harness.clock.advance(1000)
    return files, harness, log, retention


def config(ini: str) -> BrokerConfig:
    return parse(ini.encode())


@dataclass
class SlowWorker:
    """A worker thread that waits before each step, but for the first ``passed``, until it is let go."""

    passed: int = 0
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, step: Callable[[], None]) -> None:
        def after_gate() -> None:
            self.gate.wait(60)
            step()

        if self.passed:
            self.passed -= 1
            step()
            return
        task = asyncio.ensure_future(asyncio.to_thread(after_gate))
        self.waiting.set()
        await task
