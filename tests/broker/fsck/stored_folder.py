"""A data folder for the tests of fsck: two partitions of known messages, one of several segments."""

from __future__ import annotations

from pathlib import Path

from metaq_broker.clock import Clock, ManualClock
from metaq_broker.storage.files import Files
from metaq_broker.storage.log_store import LogStore
from metaq_broker.storage.partition_log import LogSettings, PartitionLog
from quick_files import QuickFiles

from metaq.formats.frames import encode_frame
from metaq.formats.message_id import EPOCH_MS
from metaq.formats.stored_form import encode_head, encode_stored

SETTINGS = LogSettings(segment_bytes_max=1000, index_interval_bytes=100)
START_MS = EPOCH_MS + 1_000_000
COUNT = 60


def frame(number: int) -> bytes:
    """One of five is of a RocketMQ client."""
    message_id = (START_MS + number - EPOCH_MS) << 22
    if number % 5 == 3:
        return encode_stored(b"", encode_head(0, 0, START_MS, bytes(8)), b"", b"message %d " % number, message_id)
    return encode_frame(message_id, 0, b"message %d " % number + b"x" * (number * 7 % 50))


def frames(count: int, first: int = 0) -> list[bytes]:
    return [frame(number) for number in range(first, first + count)]


def open_store(root: Path, files: Files | None = None) -> LogStore:
    return LogStore.open(files or QuickFiles(), ManualClock(START_MS), root, lambda topic: SETTINGS)


def fill(root: Path, *, clean: bool = True) -> None:
    """Make ``orders-0`` (several segments) and ``payments-3`` (one)."""
    store = open_store(root)
    store.get_or_create("orders", 0).append(frames(COUNT))
    store.get_or_create("payments", 3).append(frames(5))
    for log in store.logs():
        log.sync()
    store.close(clean)


def segments(root: Path, folder: str = "orders-0") -> list[Path]:
    return sorted((root / folder).glob("*.meta"))


def bodies(log: PartitionLog) -> dict[int, bytes]:
    return {item.offset: item.body for item in log.scan(log.start_offset)}


def served(root: Path, folder: str = "orders-0", files: Files | None = None) -> dict[int, bytes]:
    """What a broker serves of the partition, by offset."""
    log = PartitionLog.open(files or QuickFiles(), Clock(), root / folder, SETTINGS)
    return bodies(log)


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` but the lock."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
