"""The three answers to "what is at this offset"."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from metaq_broker.storage.handles import FileHandle


class Slice(NamedTuple):
    """``length`` durable bytes at ``position`` of a segment file, named ``path`` now; the first has offset ``offset``.

    The file stays open, and its bytes readable, as long as the slice is referenced, even if the segment is deleted
    meanwhile. Keep the slice itself, not only its ``fd``, until the bytes are sent.
    """

    handle: FileHandle
    position: int
    length: int
    offset: int
    path: Path

    @property
    def fd(self) -> int:
        """The descriptor to read from; positions are absolute, so use ``pread`` or ``sendfile`` with an offset."""
        return self.handle.fd

    def read(self) -> bytes:
        """Return the bytes (blocking)."""
        return self.handle.pread(self.length, self.position)


class AtEnd(NamedTuple):
    """There is nothing (yet) at ``offset``: it is at or behind ``readable_end``."""

    readable_end: int
    offset: int


class Moved(NamedTuple):
    """What was asked for is not there; messages go on at ``offset``."""

    offset: int
