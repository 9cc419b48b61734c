"""How fast messages arrive and how fast they are read: slopes of two sums of offsets over a window. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metaq.model import TopicPartition
from metaq_spark.offsets import Progress, unit_of

POINTS_MIN: Final = 2
WINDOW_S_MIN: Final = 20.0
WINDOW_S_MAX: Final = 600.0
"""The least and the greatest length of the window."""
CYCLES: Final = 20
"""Micro-batches that a window should span."""

Ends = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ReadRates:
    """Offsets a second, ``unit`` bytes or messages, over ``window_s``. ``None`` = not known."""

    arrival_per_s: float | None
    service_per_s: float | None
    unit: str
    window_s: float

    @property
    def gain_per_s(self) -> float | None:
        """By how much the lag falls in a second; negative if it grows."""
        if self.arrival_per_s is None or self.service_per_s is None:
            return None
        return self.service_per_s - self.arrival_per_s


def window_s(cycle_s: float | None) -> float:
    """Return the window for a query that makes a micro-batch every ``cycle_s``."""
    return WINDOW_S_MAX if cycle_s is None else min(WINDOW_S_MAX, max(WINDOW_S_MIN, CYCLES * cycle_s))


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of the least squares line through (x, y) points; ``None`` if they have no two different x."""
    count = len(points)
    if count < POINTS_MIN:
        return None
    mean_x, mean_y = (sum(point[axis] for point in points) / count for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return None
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def advances(states: Sequence[tuple[int, Ends]]) -> list[tuple[float, float]]:
    """Return (seconds, sum of what the partitions have grown by since the first state), for times in ms, oldest first.

    A partition counts from the second state that has it; one that went back was made anew, or the query was moved:
    that step does not count.
    """
    points: list[tuple[float, float]] = []
    total, before = 0, dict[TopicPartition, int]()
    for at_ms, ends in states:
        total += sum(max(0, end - before[where]) for where, end in ends.items() if where in before)
        before |= ends
        points.append((at_ms / 1000, float(total)))
    return points


def rates(
    ends: Sequence[tuple[int, Ends]], history: Sequence[tuple[int, Progress]], since_ms: int, span_s: float
) -> ReadRates | None:
    """Return the rates since ``since_ms`` from ``ends`` of partitions and the ``history`` of positions, by time in ms.

    The last position before the window counts as its start, so that a window within one long batch is not empty.
    """
    moved = [(ms, at.offsets) for ms, at in history]
    earlier = [one for one in moved if one[0] < since_ms][-1:]
    states = [*earlier, *(one for one in moved if one[0] >= since_ms)]
    if not states:
        return None
    unit = next((unit_of(where) for _, at in states for where in at), "bytes")
    seen = [(ms, end) for ms, end in ends if ms >= since_ms - 1000]
    return ReadRates(slope(advances(seen)), slope(advances(states)), unit, span_s)
