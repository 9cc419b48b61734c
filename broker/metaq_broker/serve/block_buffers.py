"""Memory for blocks on their way from the socket to the log, used again and again.

Fresh memory costs more than what is received into it: the kernel finds and clears every page of it. It does so page by
page as bytes arrive, so a block that is announced and does not come takes next to nothing.
"""

from __future__ import annotations

import mmap
from typing import Final

KEPT_BYTES_MAX: Final = 16 << 20
"""Memory that is kept for later blocks."""

_STEP_BYTES: Final = 1 << 18
"""Buffers are multiples of it long, so that one serves all the blocks of about one size."""


class BlockBuffers:
    """Gives out writable memory and takes it back. Not thread-safe.

    A buffer that is kept has all of its pages, so it counts against the limit also while a block is on its way into it:
    clients that begin blocks and stop cannot take more of such memory than is kept.
    """

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._free: list[mmap.mmap] = []
        self._kept: set[mmap.mmap] = set()
        self.kept_bytes = 0
        """Bytes of the buffers that are used again: those that wait here, and those given out again."""

    def take(self, length: int) -> memoryview:
        """Return ``length`` writable bytes, whatever they are."""
        for position, buffer in enumerate(self._free):
            if len(buffer) >= length:
                del self._free[position]
                break
        else:
            # Not shared with another process, but of the kind that never uses huge pages.
            buffer = mmap.mmap(-1, max(1, -(-length // _STEP_BYTES)) * _STEP_BYTES)
        return memoryview(buffer)[:length]

    def give_back(self, block: memoryview) -> None:
        """Take back what ``take`` returned; it must not be used any more."""
        buffer = block.obj
        assert isinstance(buffer, mmap.mmap)
        if buffer not in self._kept:
            if self.kept_bytes + len(buffer) > self._kept_bytes_max:
                return
            self._kept.add(buffer)
            self.kept_bytes += len(buffer)
        self._free.append(buffer)
