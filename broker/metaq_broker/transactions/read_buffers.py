"""Memory into which the journal is read, reused once its contents are no longer referenced.

Fresh memory costs more than the read itself: the kernel finds and clears every page, and takes it back when it is
freed. Readers need not release a buffer: a buffer to which a view is left is not given out.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

KEPT_BYTES_MAX: Final = 48 << 20
"""Limit on kept memory: two branches of the connector, one being appended while the next is read. A branch of 16 MiB
takes up to 22: its last block exceeds the limit, and buffers are rounded up.
"""

_STEP_BYTES: Final = 1 << 18
"""The length of a buffer is a multiple of this, so that one serves all records of about one size."""

_KEPT_BYTES_MIN: Final = 1 << 16
"""Shorter buffers are not kept: they cost next to nothing."""

_IN_LIST_ONLY: Final = 2
"""The reference count that CPython reports for an object that only a list refers to."""


class ReadBuffers:
    """Gives out writable memory. Thread-safe."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._buffers: list[bytearray] = []
        self._lock = threading.Lock()
        self.kept_bytes = 0
        """Bytes of all kept buffers, in use or not."""

    def take(self, length: int) -> memoryview:
        """Return ``length`` writable bytes with undefined contents, to which no other view exists."""
        if length < _KEPT_BYTES_MIN:
            return memoryview(bytearray(length))
        with self._lock:
            for number in range(len(self._buffers)):
                # A view counts as a reference, and so does each thread's own reference while it creates one.
                if sys.getrefcount(self._buffers[number]) == _IN_LIST_ONLY and len(self._buffers[number]) >= length:
                    return memoryview(self._buffers[number])[:length]
            buffer = bytearray(-(-length // _STEP_BYTES) * _STEP_BYTES)
            if self.kept_bytes + len(buffer) <= self._kept_bytes_max:
                self._buffers.append(buffer)
                self.kept_bytes += len(buffer)
            return memoryview(buffer)[:length]
