"""Counts how many measured values fall into each range; cheap enough for the event loop."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for durations of disk and network operations, in seconds."""

BYTES: Final = tuple(4**power for power in range(2, 15))
"""Bounds for sizes of messages: 16 B to 256 MiB."""


class Histogram:
    """``counts[i]`` counts values above ``bounds[i - 1]`` and at most ``bounds[i]``; the last count is of larger ones.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return for every bound how many values were at most that; the last bound is infinite."""
        sums, so_far = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += count
            sums.append((bound, so_far))
        return sums
