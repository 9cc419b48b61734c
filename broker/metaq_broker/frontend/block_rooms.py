"""Memory for blocks on their way from the socket to the log, used again and again.

Fresh memory costs more than what is received into it: the kernel finds and clears every page of it.
"""

from __future__ import annotations

from typing import Final

KEPT_BYTES_MAX: Final = 16 << 20
"""Memory that is kept for later blocks while no block needs it."""

_STEP_BYTES: Final = 1 << 18
"""Buffers are multiples of it long, so that one serves all the blocks of about one size."""


class BlockRooms:
    """Gives out writable memory and takes it back. Not thread-safe."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._free: list[bytearray] = []
        self.kept_bytes = 0
        """Bytes that wait here."""

    def take(self, length: int) -> memoryview:
        """Return ``length`` writable bytes, whatever they are."""
        for position, buffer in enumerate(self._free):
            if len(buffer) >= length:
                del self._free[position]
                self.kept_bytes -= len(buffer)
                break
        else:
            buffer = bytearray(-(-length // _STEP_BYTES) * _STEP_BYTES)
        return memoryview(buffer)[:length]

    def give_back(self, room: memoryview) -> None:
        """Take back what ``take`` returned; nobody is to look at it any more."""
        buffer = room.obj
        assert isinstance(buffer, bytearray)
        if self.kept_bytes + len(buffer) <= self._kept_bytes_max:
            self._free.append(buffer)
            self.kept_bytes += len(buffer)
