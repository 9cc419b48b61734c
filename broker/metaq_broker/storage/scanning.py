"""Reading a partition frame by frame, from what serves it slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from metaq.formats.frames import HEADER_BYTES, Frame, walk
from metaq_broker.storage.reads import AtEnd, Moved, Slice

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
