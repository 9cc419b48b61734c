"""The parts of a partition: its segments in order, its damaged ranges, and open files for reading."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from metaq.formats.frames import HEADER_BYTES, header_at, pass_whole
from metaq_broker.log.files.files import FileHandle, HandleCache
from metaq_broker.log.partitions.damage import Damage
from metaq_broker.log.segments.segment import Segment

_WALK_BYTES = 1 << 13


class Step(NamedTuple):
    """One message, or one damaged range (``message_id`` is ``None``) of ``messages`` messages."""

    offset: int
    end: int
    messages: int
    message_id: int | None


class Layout:
    """The segments (at least one) and the damage of one partition. ``handles`` may be shared with other partitions."""

    def __init__(self, segments: Sequence[Segment], damage: Sequence[Damage], handles: HandleCache) -> None:
        self.segments = list(segments)
        self.damage = list(damage)
        self.handles = handles
        self.active = self.segments[-1]
        """The segment that is written."""
        self.places: dict[int, int] = {}
        """Where recent reads ended: offsets of messages by ordinal. See ``log.engine.ordinals``."""
        self._starts = [segment.start for segment in self.segments]
        self._damage_starts = [entry.start for entry in self.damage]

    @property
    def start(self) -> int:
        """Offset of the first kept byte."""
        return self._starts[0]

    def add(self, segment: Segment) -> None:
        """Append a segment, which becomes the active one."""
        self.segments.append(segment)
        self.active = segment
        self._starts.append(segment.start)

    def add_damage(self, damage: Damage) -> None:
        """Append a damaged range, at the end."""
        self.damage.append(damage)
        self._damage_starts.append(damage.start)

    def forget(self, count: int) -> list[Segment]:
        """Remove and return the first ``count`` segments; the active one stays."""
        gone = self.segments[: min(count, len(self.segments) - 1)]
        del self.segments[: len(gone)]
        del self._starts[: len(gone)]
        self.damage = [entry for entry in self.damage if entry.start >= self.start]
        self._damage_starts = [entry.start for entry in self.damage]
        for segment in gone:
            self.handles.drop(segment.path)
            self.handles.drop(segment.index.path)
        return gone

    def find(self, offset: int) -> Segment:
        """Return the segment with ``offset``; else the nearest one below it, or the first."""
        return self.segments[max(0, bisect_right(self._starts, offset) - 1)]

    def segment_of_message(self, ordinal: int) -> Segment:
        """Return the segment with the message that has ``ordinal`` messages before it, or the nearest one."""
        place = bisect_right(self.segments, ordinal, key=lambda segment: segment.first_ordinal)
        return self.segments[max(0, place - 1)]

    def following(self, segment: Segment) -> Iterator[Segment]:
        """Yield ``segment`` and the later ones."""
        place = bisect_right(self._starts, segment.start) - 1
        return iter(self.segments[place:])

    def handle(self, segment: Segment) -> FileHandle:
        """Return an open file of the segment.

        Raises:
            OSError: It cannot be opened.
        """
        return segment.handle or self.handles.get(segment.path)

    def damage_at(self, offset: int) -> Damage | None:
        """Return the damaged range with ``offset``."""
        place = bisect_right(self._damage_starts, offset) - 1
        return self.damage[place] if place >= 0 and offset < self.damage[place].end else None

    def intact_end(self, offset: int, limit: int) -> int:
        """Return the start of the first damage after ``offset``, at most ``limit``."""
        place = bisect_right(self._damage_starts, offset)
        return min(limit, self._damage_starts[place]) if place < len(self._damage_starts) else limit

    def pass_intact(self, segment: Segment, offset: int, limit: int, messages_max: int) -> tuple[int, int]:
        """Go from the frame boundary ``offset`` to a later one; return it and the number of messages between.

        It is at most ``limit``, and as far as the next damage and one read of the file allow. ``walk`` goes further,
        step by step.
        """
        if self.damage:
            limit = offset if self.damage_at(offset) else self.intact_end(offset, limit)
        chunk = self.handle(segment).pread(_WALK_BYTES, offset - segment.start) if offset < limit else b""
        at, passed = pass_whole(chunk, 0, min(limit, segment.end) - offset, messages_max)
        return offset + at, passed

    def walk(self, segment: Segment, offset: int, limit: int) -> Iterator[Step]:
        """Yield the messages of a segment from the frame boundary ``offset`` on, by their headers, up to ``limit``.

        Stops at an invalid header: the segment has damage that was not found yet.
        """
        limit = min(limit, segment.end)
        handle, chunk, chunk_at = self.handle(segment), b"", offset
        while offset < limit:
            damage = self.damage_at(offset) if self.damage else None
            if damage is not None:
                yield Step(offset, damage.end, damage.messages, None)
                offset = damage.end
                continue
            at = offset - chunk_at
            if not 0 <= at <= len(chunk) - HEADER_BYTES:
                chunk, chunk_at, at = handle.pread(_WALK_BYTES, offset - segment.start), offset, 0
            if len(chunk) - at < HEADER_BYTES:
                return
            header = header_at(chunk, at)
            end = offset + header.frame_bytes
            if header.length < 0 or end > segment.end:
                return
            yield Step(offset, end, 1, header.message_id)
            offset = end
