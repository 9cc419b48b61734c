"""Memory for blocks on their way from the socket to the log, reused.

Fresh memory costs more than receiving the block: the kernel finds and clears every page. It does so page by page as
bytes arrive, so a block that is announced and does not arrive takes almost no memory.
"""

from __future__ import annotations

import mmap
from typing import Final

KEPT_BYTES_MAX: Final = 16 << 20
"""Limit on memory that is kept for later blocks."""

_STEP_BYTES: Final = 1 << 18
"""The length of a buffer is a multiple of this, so that one serves all blocks of about one size."""


class BlockBuffers:
    """Gives out writable memory and takes it back. Not thread-safe.

    A kept buffer has all of its pages, so it counts against the limit also while it is given out again: clients that
    begin blocks and stop cannot use more of such memory than the limit.
    """

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._free: list[mmap.mmap] = []
        self._kept: set[mmap.mmap] = set()
        self.kept_bytes = 0
        """Bytes of the reused buffers, kept here or given out again."""

    def take(self, length: int) -> memoryview:
        """Return ``length`` writable bytes with undefined contents."""
        for position, buffer in enumerate(self._free):
            if len(buffer) >= length:
                del self._free[position]
                break
        else:
            # Private, but of a kind that never uses huge pages.
            buffer = mmap.mmap(-1, max(1, -(-length // _STEP_BYTES)) * _STEP_BYTES)
        return memoryview(buffer)[:length]

    def give_back(self, block: memoryview) -> None:
        """Take back a block of ``take``, which must not be used any more."""
        buffer = block.obj
        assert isinstance(buffer, mmap.mmap)
        if buffer not in self._kept:
            if self.kept_bytes + len(buffer) > self._kept_bytes_max:
                return
            self._kept.add(buffer)
            self.kept_bytes += len(buffer)
        self._free.append(buffer)
