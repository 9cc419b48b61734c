"""Series of the history as plots: what the page gives to uPlot."""

from __future__ import annotations

from typing import Any, Final

from metaq_console.cluster.history import History, SeriesKey

POINTS_MAX: Final = 240
"""Limit on points of a plot; more could not be seen."""

Plot = dict[str, Any]


def plot(history: History, *series: tuple[str, SeriesKey]) -> Plot | None:
    """Return a plot of series with their labels, over the times of the first; ``None`` without two points."""
    times = history.points(series[0][1]).times_ms
    if len(times) < 2:
        return None
    step = -(-len(times) // POINTS_MAX)
    chosen = times[::-1][::step][::-1]  # the newest point is always shown
    rows: list[list[float | None]] = [[at / 1000 for at in chosen]]
    for _, key in series:
        found = history.points(key)
        values = dict(zip(found.times_ms, found.values, strict=True))
        rows.append([values.get(at) for at in chosen])
    return {"names": [label for label, _ in series], "rows": rows}


def slope_per_s(history: History, key: SeriesKey, since_ms: int) -> float | None:
    """Return how much a series grew a second since a time; ``None`` without two points."""
    found = history.points(key, since_ms)
    if len(found.times_ms) < 2 or found.times_ms[-1] == found.times_ms[0]:
        return None
    return (found.values[-1] - found.values[0]) / ((found.times_ms[-1] - found.times_ms[0]) / 1000)
