"""Partitions with several finished segments, for the tests of what becomes of those."""

from __future__ import annotations

from pathlib import Path

from metaq_broker.clock import ManualClock
from metaq_broker.storage.files import Files
from metaq_broker.storage.incarnation import FILE_NAME as INCARNATION
from metaq_broker.storage.partition_log import LogSettings, PartitionLog, Verify

from metaq.formats.frames import encode_frame
from metaq.formats.message_id import EPOCH_MS

FOLDER = "orders-0"
SEGMENT_BYTES = 300
SETTINGS = LogSettings(segment_bytes_max=SEGMENT_BYTES, index_interval_bytes=100)
START_MS = EPOCH_MS + 1_000_000


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
