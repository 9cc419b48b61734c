"""Received bytes, returned as lines and as exact lengths.

Three guarantees, whatever the sizes of the chunks: a byte is searched a bounded number of times for a line end, a body
is copied once (out of its chunks), and memory stays close to the buffered bytes. So the cost is linear in the bytes,
even when they arrive one by one.

Decoding continues at ``data[pos:]``. Later chunks stay in ``_chunks`` until they complete the current item. When
``data`` holds no whole line, its rest moves to the front of the chunks: then ``data`` is empty, and checking it again
costs nothing.
"""

from __future__ import annotations

from typing import Final

from metaq.errors import ProtocolError
from metaq.model import Buffer

CRLF: Final = b"\r\n"
_CARRIAGE_RETURN, _LINE_FEED = 13, 10
_LOOSE_CHUNKS_MAX: Final = 1024
"""Small chunks are joined at this number, else the list would need more memory than their bytes."""


class Inbox:
    """Decoders may read and move ``data`` and ``pos`` themselves; ``data`` is always ``bytes``."""

    __slots__ = ("_chunks", "_joined", "_searched", "_skip", "_split_line_end", "chunks_bytes", "data", "pos")

    def __init__(self) -> None:
        self.data = b""
        self.pos = 0
        self._chunks: list[bytes] = []
        self.chunks_bytes = 0
        """Bytes in the chunks after ``data``."""
        self._joined = 0  # number of joined chunks at the front
        self._searched = 0  # number of chunks at the front without a line end
        self._split_line_end = False  # the last searched chunk ends in CR
        self._skip = 0  # future bytes to drop

    @property
    def pending_bytes(self) -> int:
        """Number of buffered bytes."""
        return len(self.data) - self.pos + self.chunks_bytes

    def feed(self, chunk: Buffer) -> None:
        """Take the next bytes of the stream."""
        piece = bytes(chunk)
        if self._skip:
            dropped = min(self._skip, len(piece))
            self._skip -= dropped
            piece = piece[dropped:]
        if not self._chunks and self.pos == len(self.data):
            self.data, self.pos = piece, 0
        elif piece:
            self._chunks.append(piece)
            self.chunks_bytes += len(piece)

    def line(self, bytes_max: int) -> bytes | None:
        """Return the next line without its CRLF, or ``None`` if it is not complete.

        Raises:
            ProtocolError: The line is longer than ``bytes_max``.
        """
        end = self.data.find(CRLF, self.pos)
        if end < 0:
            if self.pos == len(self.data) and not self._chunks:  # the usual case: nothing has arrived
                self.data, self.pos = b"", 0
                return None
            self._set_rest_aside()
            arrived = self._line_end_arrived()
            if not arrived:
                # One more byte is allowed: it may be the CR of the line end.
                if self.chunks_bytes > bytes_max + 1:
                    raise ProtocolError(f"line longer than {bytes_max} bytes", self._chunks[0])
                return None
            self._take_all_chunks()
            end = self.data.find(CRLF)
        if end - self.pos > bytes_max:
            raise ProtocolError(f"line longer than {bytes_max} bytes", self.data[self.pos : self.pos + bytes_max])
        line = self.data[self.pos : end]
        self.pos = end + len(CRLF)
        return line

    def exactly(self, count: int) -> bytes | None:
        """Return the next ``count`` bytes in one copy, or ``None`` if not all have arrived."""
        end = self.pos + count
        if end <= len(self.data):
            taken = self.data[self.pos : end]
            self.pos = end
            return taken
        self._set_rest_aside()
        if self.chunks_bytes < count:
            if len(self._chunks) - self._joined >= _LOOSE_CHUNKS_MAX:
                self._join_small_chunks()
            return None
        return self._take_from_chunks(count)

    def skip(self, count: int) -> None:
        """Drop the next ``count`` bytes, including bytes that have not arrived yet."""
        here = min(count, self.pending_bytes)
        if here:
            self.exactly(here)
        self._skip = count - here

    def _set_rest_aside(self) -> None:
        if self.pos < len(self.data):
            rest = self.data[self.pos :]
            self._chunks.insert(0, rest)
            self.chunks_bytes += len(rest)
            self._searched, self._split_line_end = 1, rest[-1] == _CARRIAGE_RETURN
        self.data, self.pos = b"", 0

    def _line_end_arrived(self) -> bool:
        for chunk in self._chunks[self._searched :]:
            if CRLF in chunk or (self._split_line_end and chunk[0] == _LINE_FEED):
                return True
            self._split_line_end = chunk[-1] == _CARRIAGE_RETURN
        if len(self._chunks) - self._joined >= _LOOSE_CHUNKS_MAX:
            self._join_small_chunks()
        self._searched = len(self._chunks)
        return False

    def _join_small_chunks(self) -> None:
        self._chunks[self._joined :] = [b"".join(self._chunks[self._joined :])]
        self._joined += 1

    def _take_all_chunks(self) -> None:
        self.data, self.pos = b"".join(self._chunks), 0
        self._forget_chunks()

    def _take_from_chunks(self, count: int) -> bytes:
        parts: list[bytes] = []
        missing = count
        for chunk in self._chunks:
            if len(chunk) >= missing:
                break
            parts.append(chunk)
            missing -= len(chunk)
        later = self._chunks[len(parts) + 1 :]
        if later:
            self.data, self.pos = b"".join((chunk[missing:], *later)), 0
        else:
            self.data, self.pos = chunk, missing
        self._forget_chunks()
        parts.append(chunk[:missing])
        return b"".join(parts)

    def _forget_chunks(self) -> None:
        self._chunks = []
        self.chunks_bytes = self._joined = self._searched = 0
        self._split_line_end = False
