"""Figures, each beside its ceiling or peer from the same run, and the file with the figures of a whole run.

A program makes a ``Report`` and adds figures, which are printed as a Markdown table; with ``--json FILE`` they are also
written to a file. ``suite.py`` collects these in one results file. The ratio of a figure to its peer holds on other
machines, too. The results file, format 1:

{"format": 1, "command": ..., "date": ..., "commit": ..., "seconds": ..., "quick": ..., "peers": [...], "whole": true if
no program was left out (``--all``), "machine": {name: value, ...}, "load before": [...], "load after": [...],
"programs": [{"name", "title", "arguments": [...], "seconds", "failed": null or why, "figures": [...]}, ...]}
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

RUNS: Final = 5
"""Measured runs of each side, alternating."""

HEAD: Final = ("| figure | unit | ours | peer | ratio | aim |", "|---|---|---|---|---|---|")
"""The head of a table of figures."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement of this project and, from the same run, of its peer.

    ``name`` is unique among all benchmarks and stays the same from run to run: ``read, all columns, 100 B, local[2]``.
    ``better`` says whether more or less of ``unit`` is better. ``aim`` is the wanted ratio: the least if more is
    better, the greatest if less is.
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
    """Prints a table row by row. A context manager: at the end, the file is written."""

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
    """Format a number with about three significant digits."""
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4
    return f"{value:,.{decimals}f}"


def arguments(doc: str | None, runs: int = RUNS) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs, help=f"measured runs of each side, in turn (default {runs})")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the amount of work (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser


def run_part(parts: Mapping[str, Callable[[Sequence[str]], int | None]]) -> int:
    """Run the part of a program that the first word of the command line names; return the exit status."""
    name, *given = sys.argv[1:] or [""]
    if name not in parts:
        print(f"{Path(sys.argv[0]).name}: the first argument is one of {', '.join(parts)}", file=sys.stderr)
        return 2
    return parts[name](given) or 0


def seconds(action: Callable[[], object]) -> float:
    """Return the duration of ``action``."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def alternating(measures: Sequence[Callable[[], float]], runs: int, unmeasured: int = 1) -> list[float]:
    """Return the median result of each measure over ``runs`` rounds, after ``unmeasured`` rounds."""
    rounds = [[measure() for measure in measures] for _ in range(unmeasured + runs)][unmeasured:]
    return [statistics.median(of_measure) for of_measure in zip(*rounds, strict=True)]


def medians(actions: Sequence[Callable[[], object]], runs: int) -> list[float]:
    """Return the median seconds of each action, alternating, after one unmeasured run of each."""
    return alternating([partial(seconds, action) for action in actions], runs)


FORMAT: Final = 1


class WrongResults(Exception):
    """A file is not from the suite. The text says which, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one program. ``failed`` says why there are no figures, or is ``None``."""

    name: str
    title: str
    arguments: tuple[str, ...]
    seconds: float
    figures: tuple[Figure, ...]
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """One run of the suite. ``about`` is everything but the programs, under the names in the file."""

    about: dict[str, Any]
    outcomes: tuple[Outcome, ...]

    def figures(self) -> Iterator[tuple[Outcome, Figure]]:
        """All figures, each with its program."""
        return ((outcome, figure) for outcome in self.outcomes for figure in outcome.figures)

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.failed is not None]

    def write(self, file: Path) -> None:
        """Write the file, and create its folder."""
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT, **self.about, "programs": [asdict(outcome) for outcome in self.outcomes]}
        file.write_text(_lines(content) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file of ``write``.

        Raises:
            WrongResults: The file cannot be read, or has another form.
        """
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise WrongResults(f"{file}: not of format {FORMAT}")
            outcomes = tuple(_outcome(each) for each in content.pop("programs"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as wrong:
            raise WrongResults(f"{file}: no results of the suite ({wrong})") from None
        return cls(content, outcomes)


def _outcome(content: dict[str, Any]) -> Outcome:
    figures = tuple(Figure(**figure) for figure in content.pop("figures"))
    return Outcome(**{**content, "arguments": tuple(content["arguments"]), "figures": figures})


def _lines(value: object, indent: str = "") -> str:
    """Return JSON in which a value that holds no list of objects, such as a figure, takes one line."""
    if isinstance(value, dict) and any(_is_nested(each) for each in value.values()):
        rows = [f"{indent} {json.dumps(key)}: {_lines(each, indent + ' ')}" for key, each in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value):
        rows = [f"{indent} {_lines(each, indent + ' ')}" for each in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def _is_nested(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value)
