"""The due times of many messages. Sixteen bytes each, no timers or objects.

Messages that are due within the current minute are in a heap. All others are in arrays, one for each minute, and move
to the heap when their minute begins: adding one costs an append, and messages due in three days are not touched.
"""

from __future__ import annotations

import heapq
from array import array
from typing import Final

BUCKET_MS: Final = 60_000


class DueTimes:
    """(time in ms, ordinal) of messages that wait; earliest first, at the same time in the order of ordinals."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._buckets: dict[int, array[int]] = {}
        self._order: list[int] = []
        self._opened = -1
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, due_ms: int, ordinal: int) -> None:
        bucket = due_ms // BUCKET_MS
        self._count += 1
        if bucket <= self._opened:
            heapq.heappush(self._heap, (due_ms, ordinal))
            return
        pairs = self._buckets.get(bucket)
        if pairs is None:
            pairs = self._buckets[bucket] = array("q")
            heapq.heappush(self._order, bucket)
        pairs.extend((due_ms, ordinal))

    def take(self, now_ms: int, count: int) -> list[int]:
        """Remove and return the ordinals of at most ``count`` messages that are due by ``now_ms``."""
        taken: list[int] = []
        while len(taken) < count:
            while self._order and (not self._heap or self._order[0] <= self._heap[0][0] // BUCKET_MS):
                if self._order[0] * BUCKET_MS > now_ms:
                    break
                self._open()
            if not self._heap or self._heap[0][0] > now_ms:
                break
            taken.append(heapq.heappop(self._heap)[1])
        self._count -= len(taken)
        return taken

    def next_ms(self) -> int | None:
        """Return when the next message is due, or an earlier time; ``None`` without one."""
        first = [self._heap[0][0]] if self._heap else []
        if self._order:
            first.append(self._order[0] * BUCKET_MS)
        return min(first, default=None)

    def _open(self) -> None:
        bucket = heapq.heappop(self._order)
        pairs = self._buckets.pop(bucket)
        self._opened = max(self._opened, bucket)
        self._heap.extend(zip(pairs[::2], pairs[1::2], strict=True))
        heapq.heapify(self._heap)
