"""One partition of the broker in memory: its bytes, its segments, its counts, its incarnation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import uuid4

from metaq.formats.frames import walk, whole_bytes
from metaq.formats.message_id import timestamp_ms


@dataclass
class MemoryPartition:
    """Bytes of one partition: a list of segments, each a start offset and its content.

    ``messages_dropped`` counts the messages of deleted segments.
    """

    segment_bytes_max: int
    segments: list[tuple[int, bytearray]] = field(default_factory=lambda: [(0, bytearray())])
    incarnation: str = field(default_factory=lambda: uuid4().hex)
    messages_dropped: int = 0

    @property
    def start(self) -> int:
        return self.segments[0][0]

    @property
    def end(self) -> int:
        start, content = self.segments[-1]
        return start + len(content)

    def append(self, frames: bytes) -> int:
        offset = self.end
        self.segments[-1][1].extend(frames)
        if len(self.segments[-1][1]) >= self.segment_bytes_max:
            self.segments.append((self.end, bytearray()))
        return offset

    def segment_at(self, offset: int) -> tuple[int, bytearray]:
        return self.segments[bisect_right(self.segments, offset, key=lambda segment: segment[0]) - 1]

    def drop_segments(self, count: int) -> None:
        """Delete the oldest ``count`` segments, as retention does."""
        self.messages_dropped += sum(1 for _, content in self.segments[:count] for _ in walk(content))
        del self.segments[:count]

    def boundary(self, offset: int) -> int:
        """The frame boundary at or below ``offset``."""
        offset = min(max(offset, self.start), self.end)
        start, content = self.segment_at(offset)
        return start + whole_bytes(content[: offset - start])

    def ordinal(self, offset: int) -> int:
        """How many messages are before the frame boundary at or below ``offset``."""
        before = self.boundary(offset)
        return self.messages_dropped + sum(1 for start in self._frame_starts() if start < before)

    def offset_of_message(self, ordinal: int) -> int:
        """Where the message with so many before it begins, or the start or the end."""
        starts = [*self._frame_starts(), self.end]
        return starts[min(max(ordinal - self.messages_dropped, 0), len(starts) - 1)]

    def first_at(self, time_ms: int) -> int:
        """Return the offset of the first message at or after ``time_ms``, by message ids; the end if there is none."""
        frames = (frame for start, content in self.segments for frame in walk(content, start))
        return next((f.offset for f in frames if (timestamp_ms(f.message_id) or 0) >= time_ms), self.end)

    def _frame_starts(self) -> Iterator[int]:
        return (frame.offset for start, content in self.segments for frame in walk(content, start))

    def content(self) -> bytes:
        """Return all bytes from ``start`` to ``end``."""
        return b"".join(content for _, content in self.segments)
