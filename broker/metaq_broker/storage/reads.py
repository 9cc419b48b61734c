"""Reading a partition: the three answers to "what is at this offset", and frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from metaq.formats.frames import HEADER_BYTES, Frame, walk
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


SCAN_BYTES: Final = 1 << 20


def scan(read: Callable[[int, int], Slice | AtEnd | Moved], offset: int, where: str) -> Iterator[Frame]:
    """Yield the durable, intact frames from the frame boundary ``offset`` on (blocking).

    ``read`` is ``PartitionLog.read``, ``where`` its name for errors.

    Raises:
        CorruptFrame: Damage that nobody knew of yet, or ``offset`` is no frame boundary.
    """
    bytes_max = SCAN_BYTES
    while not isinstance(found := read(offset, bytes_max), AtEnd):
        if isinstance(found, Moved):
            offset = found.offset
            continue
        run = found.read()
        before = offset
        for frame in walk(run, offset, where=where):
            yield frame
            offset = frame.end
        # Not one whole frame: it is larger than the slice.
        bytes_max = SCAN_BYTES if offset > before else HEADER_BYTES + int.from_bytes(run[:4])
