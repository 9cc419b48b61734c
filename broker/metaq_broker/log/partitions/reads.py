"""Reads of a partition: slices of its files by offset, and positions (boundaries, ordinals, times).

A position is found by a search in the index, then a short walk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from metaq.formats.frames import Frame, frame_bytes, walk
from metaq.formats.message_id import timestamp_ms
from metaq.model import INT64_MAX
from metaq_broker.log.files.files import FileHandle
from metaq_broker.log.partitions.layout import Layout
from metaq_broker.log.segments.index import IndexEntry
from metaq_broker.log.segments.segment import Segment


class Slice(NamedTuple):
    """``length`` durable bytes at ``position`` of a segment file; the first has offset ``offset``.

    The file stays open, and its bytes readable, while the slice is referenced, even if the segment is deleted
    meanwhile. Keep the slice itself, not only its ``fd``, until the bytes are sent.
    """

    handle: FileHandle
    position: int
    length: int
    offset: int

    @property
    def fd(self) -> int:
        """The descriptor to read from; positions are absolute, so use ``pread`` or ``sendfile`` with an offset."""
        return self.handle.fd

    def read(self) -> bytes:
        return self.handle.pread(self.length, self.position)


class ReadAtEnd(NamedTuple):
    """There is nothing (yet) at ``offset``: it is at or after ``readable_end``."""

    readable_end: int
    offset: int


class ReadMoved(NamedTuple):
    """The requested bytes do not exist; messages continue at ``offset``."""

    offset: int


SCAN_BYTES: Final = 1 << 20


def scan(read: Callable[[int, int], Slice | ReadAtEnd | ReadMoved], offset: int, where: str) -> Iterator[Frame]:
    """Yield the durable, intact frames from the frame boundary ``offset`` on (blocking).

    ``read`` is ``PartitionLog.read``, ``where`` its name for errors.

    Raises:
        CorruptFrame: Newly found damage, or ``offset`` is not a frame boundary.
    """
    bytes_max = SCAN_BYTES
    while not isinstance(found := read(offset, bytes_max), ReadAtEnd):
        if isinstance(found, ReadMoved):
            offset = found.offset
            continue
        run = found.read()
        before = offset
        for frame in walk(run, offset, where=where):
            yield frame
            offset = frame.end
        # No whole frame: it is larger than the slice.
        bytes_max = SCAN_BYTES if offset > before else frame_bytes(run)


_OFFSET: Final = attrgetter("offset")
_ORDINAL: Final = attrgetter("ordinal")
_TIME_MS: Final = attrgetter("time_ms")


class Boundary(NamedTuple):
    """A frame boundary and the number of messages before it."""

    offset: int
    ordinal: int


def boundary_at_or_below(layout: Layout, offset: int) -> Boundary:
    """Return the last kept frame boundary at or below ``offset``; in damage, its start."""
    segment = layout.find(offset)
    entry = segment.index.last_at_most(layout.handles, _OFFSET, offset, segment.start, segment.end)
    boundary = _pass_intact(layout, segment, _boundary(segment, entry), offset, INT64_MAX)
    for step in layout.walk(segment, boundary.offset, offset):
        if step.end > offset:
            break
        boundary = Boundary(step.end, boundary.ordinal + step.messages)
    return boundary


def boundary_of_message(layout: Layout, ordinal: int) -> Boundary:
    """Return the start of the message with ``ordinal`` messages before it, or of the damage with it.

    Below the first kept message: the start of that one.
    """
    segment = layout.segment_of_message(ordinal)
    first = segment.first_ordinal
    end = first + segment.messages if segment.messages else None
    entry = segment.index.last_at_most(layout.handles, _ORDINAL, ordinal, first, end)
    boundary = _pass_intact(layout, segment, _boundary(segment, entry), segment.end, ordinal)
    for step in layout.walk(segment, boundary.offset, segment.end):
        if boundary.ordinal + step.messages > ordinal:
            break
        boundary = Boundary(step.end, boundary.ordinal + step.messages)
    return boundary


def _boundary(segment: Segment, entry: IndexEntry | None) -> Boundary:
    """Return the boundary of an index entry; ``None``: the start of the segment."""
    return Boundary(segment.start, segment.first_ordinal) if entry is None else Boundary(entry.offset, entry.ordinal)


def _pass_intact(layout: Layout, segment: Segment, boundary: Boundary, limit: int, ordinal_max: int) -> Boundary:
    """Return the last boundary within ``limit`` and ``ordinal_max`` that is reached over intact messages only."""
    passed = -1
    while passed and boundary.offset < limit and boundary.ordinal < ordinal_max:
        offset, passed = layout.pass_intact(segment, boundary.offset, limit, ordinal_max - boundary.ordinal)
        boundary = Boundary(offset, boundary.ordinal + passed)
    return boundary


def first_at(layout: Layout, time_ms: int, readable_end: int) -> int:
    """Return the offset of the first message at or after ``time_ms``; ``readable_end`` if there is none.

    Exact if message ids have the time. Without it, the offset may be earlier, by at most an index interval.
    """
    first = _segment_before(layout, time_ms)
    behind = next(islice(layout.following(first), 1, None), None)
    end_ms = None if behind is None else behind.first_ms
    entry = first.index.last_at_most(layout.handles, _TIME_MS, time_ms - 1, first.first_ms, end_ms)
    offset = first.start if entry is None else entry.offset
    for segment in layout.following(first):
        for step in layout.walk(segment, max(offset, segment.start), readable_end):
            if step.message_id is not None:
                known_ms = timestamp_ms(step.message_id)
                if known_ms is None or known_ms >= time_ms:
                    return min(step.offset, readable_end)
    return readable_end


def _segment_before(layout: Layout, time_ms: int) -> Segment:
    """Return the last segment before which every message is earlier than ``time_ms``."""
    found = layout.segments[0]
    for segment in layout.segments:
        if segment.first_ms >= time_ms:
            break
        found = segment
    return found
