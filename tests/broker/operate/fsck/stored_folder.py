"""A data folder for the tests of fsck: two partitions of known messages, one of several segments."""

from __future__ import annotations

from pathlib import Path

from metaq_broker.clock import Clock, ManualClock
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.partition_log import PartitionLog
from stored import SMALL, START_MS, QuickFiles, frames

COUNT = 60


def open_store(root: Path, files: Files | None = None) -> LogStore:
    return LogStore.open(files or QuickFiles(), ManualClock(START_MS), root, lambda topic: SMALL)


def fill(root: Path, *, clean: bool = True) -> None:
    """Make ``orders-0`` (several segments) and ``payments-3`` (one)."""
    store = open_store(root)
    for frame in frames(COUNT):
        store.get_or_create("orders", 0).append([frame])
    store.get_or_create("payments", 3).append(frames(5))
    for log in store.logs():
        log.sync()
    store.close(clean)


def segments(root: Path) -> list[Path]:
    return sorted((root / "orders-0").glob("*.meta"))


def bodies(log: PartitionLog) -> dict[int, bytes]:
    return {item.offset: item.body for item in log.scan(log.start_offset)}


def served(root: Path) -> dict[int, bytes]:
    """What a broker serves of ``orders-0``, by offset."""
    return bodies(PartitionLog.open(QuickFiles(), Clock(), root / "orders-0", SMALL))


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
