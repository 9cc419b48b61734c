"""Figures of one program whose names differ in one count or size only, as lines over it.

``read, 4 partitions`` and ``read, 16 partitions`` belong together, as do ``write, 100 B`` and ``write, 10 KB``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from figures import Figure
from results import Results

POINTS_MIN: Final = 3
"""Fewer make no line."""

_UNITS: Final = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_COUNTED: Final = re.compile(
    r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?) (partitions?|connections?|tasks?|rows?|[KMG]i?B|B)(?!\w)"
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A line: ``figures`` over ``counts``, which grow. ``counted`` says of what; sizes are in bytes."""

    title: str
    counted: str
    counts: tuple[float, ...]
    figures: tuple[Figure, ...]

    @property
    def unit(self) -> str:
        return self.figures[0].unit

    @property
    def peer_name(self) -> str:
        """Of all points if they have the same one."""
        names = {figure.peer_name for figure in self.figures if figure.peer}
        return names.pop() if len(names) == 1 else "peer"


def panels(results: Results) -> list[Panel]:
    """The lines of all programs, in the order of their first figures."""
    return [panel for outcome in results.outcomes for panel in _panels(outcome.figures)]


def _panels(figures: Sequence[Figure]) -> Iterator[Panel]:
    families: dict[tuple[str, str, str], dict[float, Figure]] = defaultdict(dict)
    for figure in figures:
        for found in _COUNTED.finditer(figure.name):
            count, counted = float(found[1].replace(",", "")), found[2]
            if counted in _UNITS:
                count, counted = count * _UNITS[counted], "bytes"
            counted = {"partition": "partitions", "connection": "connections", "task": "tasks", "row": "rows"}.get(
                counted, counted
            )
            rest = f"{figure.name[: found.start()]}…{figure.name[found.end() :]}"
            families[rest, counted, figure.unit][count] = figure
    for (rest, counted, _), points in families.items():
        if len(points) >= POINTS_MIN:
            counts = sorted(points)
            yield Panel(_title(rest), counted, tuple(counts), tuple(points[count] for count in counts))


def _title(rest: str) -> str:
    """The name without the place where the count was."""
    return re.sub(r"(, …|… ?,? ?|^, )", "", rest).strip(" ,:")
