"""Partitions with old segments and their retention, with a clock that is moved by hand and workers without threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from fix_broker import system_section
from metaq_broker.clock import ManualClock
from metaq_broker.config.configuration import BrokerConfig, parse
from metaq_broker.retention.retention import Retention
from metaq_broker.storage.files import Files
from metaq_broker.storage.incarnation import FILE_NAME as INCARNATION
from metaq_broker.storage.partition_log import LogSettings, PartitionLog, Verify
from metaq_broker.testing import FaultyFiles

from metaq.formats.frames import encode_frame
from metaq.formats.message_id import EPOCH_MS

FOLDER = "orders-0"
SEGMENT_BYTES = 300
SETTINGS = LogSettings(segment_bytes_max=SEGMENT_BYTES, index_interval_bytes=100)
START_MS = EPOCH_MS + 1_000_000
NOW_MS = 1_770_000_000_000
POLICY = {"deletePolicy": "delete,10s", "deleteWhen": "* * * * * ?"}
SYSTEM = system_section(0, 4, maxSegmentSize=300, maxTransferSize=1000, **POLICY)
ORDERS = SYSTEM + "[topic=orders]\n"


def frame(number: int) -> bytes:
    """Message number ``number``; ten of them fill a segment."""
    return encode_frame((START_MS + number - EPOCH_MS) << 22, 0, b"message %02d" % number)


def frames(count: int, first: int = 0) -> list[bytes]:
    return [frame(number) for number in range(first, first + count)]


def open_log(root: Path, files: Files | None = None, *, verify: Verify = "tail") -> PartitionLog:
    return PartitionLog.open(files or Files(), ManualClock(START_MS), root / FOLDER, SETTINGS, verify=verify)


def rolled_log(root: Path, segments: int = 4, files: Files | None = None) -> PartitionLog:
    """A partition of ``segments`` finished segments with ten messages each, and a last one with three; all durable."""
    log = open_log(root, files)
    log.append(frames(10 * segments + 3))
    log.sync()
    assert [info.read_only for info in log.segments()] == [True] * segments + [False]
    return log


def contents(log: PartitionLog) -> list[bytes]:
    """All that a reader gets, as frames."""
    return [encode_frame(item.message_id, item.flag, item.body) for item in log.scan(log.start_offset)]


def names(root: Path) -> list[str]:
    """The segment files of the partition and what became of others: no indexes, no incarnation."""
    files = (root / FOLDER).iterdir()
    return sorted(path.name for path in files if path.suffix != ".index" and path.name != INCARNATION)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 20))

    return run


async def at_once(step: Callable[[], None]) -> None:
    """A worker that needs no thread."""
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
    """A worker thread that waits before each step until it is let go."""

    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, step: Callable[[], None]) -> None:
        def after_gate() -> None:
            self.gate.wait(20)
            step()

        task = asyncio.ensure_future(asyncio.to_thread(after_gate))
        self.waiting.set()
        await task
