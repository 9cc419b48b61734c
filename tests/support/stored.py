"""What the storage tests are made of: frames with known content, and a partition to put them in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from metaq_broker.clock import Clock, ManualClock
from metaq_broker.storage.files import Files
from metaq_broker.storage.partition_log import LogSettings, PartitionLog, Verify
from quick_files import QuickFiles

from metaq.formats.frames import Frame, encode_frame
from metaq.formats.message_id import EPOCH_MS
from metaq.formats.stored_form import encode_head, encode_stored

FOLDER = "orders-0"
SMALL = LogSettings(segment_bytes_max=1000, index_interval_bytes=100)
ONE_SEGMENT = LogSettings(segment_bytes_max=1 << 30, index_interval_bytes=100)
START_MS = EPOCH_MS + 1_000_000
BROKER_ID = 5
STORED_HEAD = encode_head(0, 0, START_MS, bytes(8))
"""Of the messages in the stored form."""


def message_id(number: int) -> int:
    """Ids of one broker, one each millisecond."""
    return (START_MS + number - EPOCH_MS) << 22 | BROKER_ID << 12


def frame(number: int, body: bytes | None = None) -> bytes:
    """Message number ``number``: a body that says so, of 10 to 60 bytes; one of five is of a RocketMQ client."""
    if body is None:
        body = b"message %d " % number + b"x" * (number * 7 % 50)
        if number % 5 == 3:
            return encode_stored(b"", STORED_HEAD, b"", body[:11], message_id(number))
    return encode_frame(message_id(number), 0, body)


def frames(count: int, first: int = 0) -> list[bytes]:
    return [frame(number) for number in range(first, first + count)]


def open_log(
    root: Path,
    settings: LogSettings = ONE_SEGMENT,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    verify: Verify = "tail",
) -> PartitionLog:
    return PartitionLog.open(
        files or QuickFiles(), clock or ManualClock(START_MS), root / FOLDER, settings, verify=verify
    )


def filled(
    root: Path, stored: Iterable[bytes], settings: LogSettings = ONE_SEGMENT, *, clean: bool = True
) -> list[int]:
    """Write a partition with these frames, one append each; return their offsets. ``clean`` completes the index."""
    log = open_log(root, settings)
    offsets = [log.append([item]) for item in stored]
    log.sync()
    log.close(clean=clean)
    return offsets


def encoded(item: Frame) -> bytes:
    return encode_frame(item.message_id, item.flag, item.body)


def contents(log: PartitionLog) -> dict[int, bytes]:
    """All that a reader gets, by offset, frames as bytes; read through ``read`` in whole."""
    return {item.offset: encoded(item) for item in log.scan(log.start_offset)}


def by_offset(stored: Sequence[bytes], start: int = 0) -> dict[int, bytes]:
    result = {}
    for item in stored:
        result[start] = item
        start += len(item)
    return result


def last_segment(root: Path) -> Path:
    return max((root / FOLDER).glob("*.meta"))
