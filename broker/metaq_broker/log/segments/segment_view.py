"""Reads one segment file sequentially, by absolute offset, and checks every frame.

A frame is valid when its length is not negative and ends inside the file, its body matches its checksum, and it is not
empty with message id 0: twenty zero bytes pass every other check, and files that lost their data are full of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Final, NamedTuple

from metaq.formats.frames import HEADER_BYTES, FrameHeader, header_at, intact
from metaq_broker.log.files.files import FileHandle

WINDOW_BYTES: Final = 1 << 20


class ValidFrame(NamedTuple):
    """A frame that passed every check."""

    offset: int
    end: int
    message_id: int

    @property
    def has_body(self) -> bool:
        return self.end - self.offset > HEADER_BYTES


class NumberedRun(NamedTuple):
    """Contiguous valid frames: ``data``, with their message ids."""

    data: bytes
    message_ids: list[int]


class SegmentView:
    """One segment from offset ``start`` to ``end``."""

    def __init__(self, handle: FileHandle, start: int, size: int, window_bytes: int = WINDOW_BYTES) -> None:
        self._handle = handle
        self.start, self.end = start, start + size
        self._window_bytes = window_bytes
        self._window = b""
        self._window_at = start

    def read(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes from ``offset``, fewer only at the end of the segment."""
        count = max(0, min(count, self.end - offset))
        at = offset - self._window_at
        if at < 0 or at + count > len(self._window):
            wanted = min(max(count, self._window_bytes), self.end - offset)
            self._window = self._handle.pread(wanted, offset - self.start)
            self._window_at, at = offset, 0
        return self._window[at : at + count]

    def header(self, offset: int) -> FrameHeader | None:
        """Return the header at ``offset``; ``None`` if fewer than 20 bytes are left."""
        data = self.read(offset, HEADER_BYTES)
        return header_at(data) if len(data) == HEADER_BYTES else None

    def frames(self, offset: int) -> Iterator[ValidFrame]:
        """Yield contiguous valid frames from ``offset`` on; stop at anything else."""
        while (header := self.header(offset)) is not None:
            if header.length < 0 or not self._holds(offset, header.frame_bytes):
                return
            before = offset
            window_at = self._window_at
            for start, end, message_id in _valid(self._window, offset - window_at):
                yield ValidFrame(window_at + start, window_at + end, message_id)
                offset = window_at + end
            if offset == before:
                return

    def run(self, offset: int, stop: int, bytes_wanted: int) -> NumberedRun | None:
        """Return the valid frames from ``offset`` on that begin before ``stop``, until they have ``bytes_wanted``
        bytes.

        They may be fewer, and the next call continues; ``None`` if there are none.
        """
        header = self.header(offset)
        if header is None or header.length < 0 or not self._holds(offset, header.frame_bytes):
            return None
        first = offset - self._window_at
        until = min(first + bytes_wanted, stop - self._window_at)
        valid = list(takewhile(lambda frame: frame[0] < until, _valid(self._window, first)))
        return NumberedRun(self._window[first : valid[-1][1]], [frame[2] for frame in valid]) if valid else None

    def _holds(self, offset: int, count: int) -> bool:
        """Return whether the segment has these bytes; they are then in the window."""
        return len(self.read(offset, count)) == count

    def valid_at(self, offset: int) -> bool:
        """Return whether a valid frame starts at ``offset``."""
        return next(self.frames(offset), None) is not None


def _valid(window: bytes, start: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and message id of the valid frames from ``start`` on."""
    for end, message_id, _, _, body in intact(window, start):
        if not body and not message_id:
            return
        yield start, end, message_id
        start = end
