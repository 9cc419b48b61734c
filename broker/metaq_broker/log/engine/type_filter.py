"""Selects messages of given types from a partition.

The work of one request is bounded: at most ``SCAN_BYTES_MAX`` bytes of the log are read, except that a single longer
frame is read whole, piece by piece. Every frame's checksum is verified.

Source: docs/protocol.md, "fget".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from metaq.errors import CorruptFrame
from metaq.formats.checksum import CHECKSUM_MASK, crc32
from metaq.formats.frames import HEADER_BYTES, frame_bytes, header_at
from metaq.formats.message_types import TYPE_BYTES_MAX, Selection, select, type_of
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.reads import ReadAtEnd, ReadMoved, Slice

SCAN_BYTES_MAX: Final = 1 << 20
"""Limit on bytes of the log for one request; they take some milliseconds of the event loop."""

_CHUNK_BYTES: Final = 1 << 18


Pick = Callable[[bytes, int, Collection[bytes]], Selection]
"""``select`` or ``select_run``."""


class BetweenBoundaries(Exception):
    """A scan cannot begin at the requested offset, which is inside the message that begins at ``boundary``."""

    def __init__(self, boundary: int) -> None:
        self.boundary = boundary
        super().__init__(boundary)


@dataclass(frozen=True, slots=True)
class LargeFrame:
    """The only selected frame, too long for memory; the next one begins after it."""

    frame: Slice

    @property
    def frame_bytes(self) -> int:
        return self.frame.length

    @property
    def next_offset(self) -> int:
        return self.frame.offset + self.frame.length


def scan(
    log: PartitionLog, offset: int, bytes_max: int, types: Collection[bytes], pick: Pick = select
) -> Selection | LargeFrame | ReadAtEnd | ReadMoved:
    """Read whole frames from ``offset`` on, about ``bytes_max`` bytes, at least one frame; select frames of ``types``.

    ``pick`` may also end the selection earlier.

    Raises:
        BetweenBoundaries: No frame begins at ``offset``.
        CorruptFrame: The frame at ``offset`` is damaged. Later damage only ends the selection.
        OSError: The segment cannot be read.
    """
    found = log.read(offset, max(HEADER_BYTES, min(bytes_max, SCAN_BYTES_MAX)))
    if not isinstance(found, Slice):
        return found
    boundary = log.boundary(offset)
    if boundary != offset:
        raise BetweenBoundaries(boundary)
    run = found.read()
    selection = pick(run, offset, types)
    if selection.next_offset > offset:
        return replace(selection, fault=None)
    if selection.fault is not None or len(run) < HEADER_BYTES:
        raise _corrupt(log, offset, selection.fault or "not even a header")
    return _scan_one(log, offset, frame_bytes(run), types)


def _scan_one(log: PartitionLog, offset: int, size: int, types: Collection[bytes]) -> Selection | LargeFrame:
    """Read one frame that is longer than the limit of a scan."""
    whole = log.read(offset, size)
    if not isinstance(whole, Slice) or whole.length < size:
        raise _corrupt(log, offset, f"{size} bytes are announced, more than there are")
    front = whole.handle.pread(min(size, HEADER_BYTES + TYPE_BYTES_MAX), whole.position)
    _, stored, _, flag = header_at(front)
    crc, at = 0, HEADER_BYTES
    while at < size:
        block_part = whole.handle.pread(min(_CHUNK_BYTES, size - at), whole.position + at)
        if not block_part:
            raise _corrupt(log, offset, f"the file ends after {at} of {size} bytes")
        crc = crc32(block_part, crc)
        at += len(block_part)
    if crc & CHECKSUM_MASK != stored:
        raise _corrupt(log, offset, f"the checksum of {size - HEADER_BYTES} body bytes is not {stored:#x}")
    if type_of(flag, front[HEADER_BYTES:]) in types:
        return LargeFrame(whole)
    return Selection(offset + size, [])


def _corrupt(log: PartitionLog, offset: int, reason: str) -> CorruptFrame:
    return CorruptFrame(log.name, offset, reason)
