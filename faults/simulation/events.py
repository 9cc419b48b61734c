"""The order of things in a history: what happens when. Times are microseconds of the history."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any


def between(random: Random, low: int, high: int) -> int:
    """Return a number from ``low`` to ``high``; much faster than ``randint``."""
    return low + int(random.random() * (high - low + 1))


class Schedule:
    """Runs calls in the order of their times; calls of one time in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0
        self._calls: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay: int, call: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._calls, (self.now + delay, self._count, call, arguments))

    def run_until(self, end: int, is_over: Callable[[], bool] | None = None) -> None:
        """Run what happens before ``end``, or until ``is_over``, which is asked from time to time."""
        calls, asked = self._calls, self.now
        while calls and calls[0][0] < end:
            self.now, _, call, arguments = heappop(calls)
            call(*arguments)
            if is_over is not None and self.now - asked > 100_000:
                asked = self.now
                if is_over():
                    return
        self.now = max(self.now, end)
