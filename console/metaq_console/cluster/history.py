"""The recent past of a cluster, for plots: a bounded number of series with a bounded number of points."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

from metaq.net.clock import wall_clock_ms

POINTS_MAX: Final = 720
"""Points of a series: two hours, with one every ten seconds."""
SERIES_MAX: Final = 1000

Kind = Literal["cluster", "topic", "group", "query"]


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """What a series is about: a kind of thing, its name (blank: the cluster), and a figure of it, such as ``lag``."""

    kind: Kind
    name: str
    figure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A series, oldest first: ``times_ms[i]`` belongs to ``values[i]``."""

    times_ms: tuple[int, ...]
    values: tuple[float, ...]


class History:
    """Keeps the newest points of each series; the series that got none for longest goes first. For one thread."""

    def __init__(self, series_max: int = SERIES_MAX, points_max: int = POINTS_MAX) -> None:
        self._series_max, self._points_max = series_max, points_max
        self._series: OrderedDict[SeriesKey, tuple[array[int], array[float]]] = OrderedDict()

    def add(self, key: SeriesKey, value: float, time_ms: int | None = None) -> None:
        """Add a point; by default of now."""
        times, values = self._series.setdefault(key, (array("q"), array("d")))
        times.append(wall_clock_ms() if time_ms is None else time_ms)
        values.append(value)
        if len(times) > self._points_max:
            del times[0], values[0]
        self._series.move_to_end(key)
        while len(self._series) > self._series_max:
            self._series.popitem(last=False)

    def points(self, key: SeriesKey, since_ms: int = 0) -> Points:
        """Return the points of a series from a time on; none if it is not known."""
        times, values = self._series.get(key, (array("q"), array("d")))
        first = next((number for number, time_ms in enumerate(times) if time_ms >= since_ms), len(times))
        return Points(times_ms=tuple(times[first:]), values=tuple(values[first:]))

    def keys(self) -> list[SeriesKey]:
        """Return what there is a series of."""
        return list(self._series)
