"""Memory that the journal is read into, reused once its contents are no longer referenced.

Fresh memory costs more than what is read into it: the kernel finds and clears every page of it, and takes it back when
it is freed. Who has read need not say when he is done: a buffer of which some view is left is not given out.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

KEPT_BYTES_MAX: Final = 32 << 20
"""Memory that is kept: two branches of the connector, the one that is appended and the one that is read meanwhile."""

_STEP_BYTES: Final = 1 << 18
"""Buffers are multiples of it long, so that one serves all the records of about one size."""

_KEPT_BYTES_MIN: Final = 1 << 16
"""Shorter ones cost next to nothing, and need no place here."""

_IN_LIST_ONLY: Final = 2
"""References that CPython counts for an object in a list, while it is asked about."""


class ReadBuffers:
    """Gives out writable memory. For any number of threads."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._buffers: list[bytearray] = []
        self._lock = threading.Lock()
        self.kept_bytes = 0
        """Bytes that are kept here, in use or not."""

    def take(self, length: int) -> memoryview:
        """Return ``length`` writable bytes, whatever they are, of which no other view is left."""
        if length < _KEPT_BYTES_MIN:
            return memoryview(bytearray(length))
        with self._lock:
            for number in range(len(self._buffers)):
                # A view counts as a reference, and so does each thread's own while it makes one.
                if sys.getrefcount(self._buffers[number]) == _IN_LIST_ONLY and len(self._buffers[number]) >= length:
                    return memoryview(self._buffers[number])[:length]
            buffer = bytearray(-(-length // _STEP_BYTES) * _STEP_BYTES)
            if self.kept_bytes + len(buffer) <= self._kept_bytes_max:
                self._buffers.append(buffer)
                self.kept_bytes += len(buffer)
            return memoryview(buffer)[:length]
