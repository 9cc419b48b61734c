"""What every benchmark hands out: figures, each beside its ceiling or peer from the same run.

A program makes a ``Report``, adds figures as it measures them and so prints a Markdown table; with ``--json FILE`` the
same figures go to a file, from which ``suite.py`` makes the whole. The ratio is what carries over to other machines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

RUNS: Final = 5
"""Measured runs of each side, in turn."""

HEAD: Final = ("| figure | unit | ours | peer | ratio | aim |", "|---|---|---|---|---|---|")
"""Above the rows of a table of figures."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement of ours and, from the same run, of what it is compared with.

    ``name`` is unique among all benchmarks and stays the same from run to run: ``read, all columns, 100 B, local[2]``.
    ``better`` says whether more or less of ``unit`` is better. ``aim`` is the ratio that we want: at least that where
    more is better, at most that where less is.
    """

    name: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    better: Literal["more", "less"] = "more"
    aim: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's; ``None`` without a peer."""
        return self.ours / self.peer if self.peer else None

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; ``None`` if there is none."""
        if self.aim is None or self.ratio is None:
            return None
        return self.ratio >= self.aim if self.better == "more" else self.ratio <= self.aim


class Report:
    """Prints a table as its figures come. A context manager: at the end, the file is written."""

    def __init__(self, title: str, file: Path | None = None) -> None:
        self.title, self._file = title, file
        self.figures: list[Figure] = []

    def add(self, figure: Figure) -> None:
        """Print a figure as a row and keep it."""
        if not self.figures:
            print(f"\n### {self.title}\n", *HEAD, sep="\n")
        assert all(figure.name != known.name for known in self.figures), figure.name
        self.figures.append(figure)
        print(row(figure), flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        if kind is None and self._file is not None:
            content = {"title": self.title, "figures": [asdict(figure) for figure in self.figures]}
            self._file.write_text(json.dumps(content, indent=1) + "\n")


def row(figure: Figure) -> str:
    """A figure as a row of the table, in Markdown."""
    peer = "" if figure.peer is None else f"{number(figure.peer)} ({figure.peer_name})"
    ratio = "" if figure.ratio is None else number(figure.ratio)
    aim = "" if figure.aim is None else f"{'≥' if figure.better == 'more' else '≤'} {figure.aim:.2f}"
    mark = {True: " ✓", False: " ✗", None: ""}[figure.met]
    return f"| {figure.name} | {figure.unit} | {number(figure.ours)} | {peer} | {ratio} | {aim}{mark} |"


def number(value: float) -> str:
    """Three or so significant digits."""
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4
    return f"{value:,.{decimals}f}"


def arguments(doc: str | None, runs: int = RUNS) -> argparse.ArgumentParser:
    """The options that all benchmarks take; a program adds its own."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs, help=f"measured runs of each side, in turn (default {runs})")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the amount of work (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser


def seconds(action: Callable[[], object]) -> float:
    """How long ``action`` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def in_turn(measures: Sequence[Callable[[], float]], runs: int, unmeasured: int = 1) -> list[float]:
    """Median of what each measure returns over ``runs`` turns, after ``unmeasured`` turns that do not count."""
    turns = [[measure() for measure in measures] for _ in range(unmeasured + runs)][unmeasured:]
    return [statistics.median(of_measure) for of_measure in zip(*turns, strict=True)]


def medians(actions: Sequence[Callable[[], object]], runs: int) -> list[float]:
    """Median seconds of each action, run in turn after one unmeasured run of each."""
    return in_turn([partial(seconds, action) for action in actions], runs)
