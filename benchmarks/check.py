"""Compares a run of the suite with the recorded one: ratio by ratio, each with the margin of its kind.

    python benchmarks/check.py [RESULTS] [--baseline FILE] [--record] [--no-second-try]

Without RESULTS the suite runs first. Compared are ratios to ceilings and peers, which hold on other machines, as
seconds do not. A ratio that is worse than the baseline's by more than its margin fails, and so does a missing figure.
Before that counts as a regression, the program runs once more, with the same arguments, and the better of the two
ratios counts: other load on the same cores is no regression. The exit status is 1 if anything fails. ``--record`` makes
RESULTS the baseline.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

import suite
from figures import Figure, Outcome, Results, WrongResults, number
from suite import FOLDER, SUITE, Program

BASELINE: Final = FOLDER / "baseline.json"


class Margin(NamedTuple):
    """How much worse than the baseline a ratio may be, as a fraction of the baseline's."""

    kind: str
    part: float
    holds: Callable[[Figure], bool]


MARGINS: Final = (
    Margin("a fixed limit instead of a peer", 0.50, lambda figure: figure.peer_name == "limit"),
    Margin("the tail of latencies (p95, p99, worst)", 0.30, lambda figure: _named(figure, "p95", "p99", "worst")),
    Margin("memory", 0.15, lambda figure: figure.unit in ("MiB", "GiB", "MiB/GB", "bytes") and _less(figure)),
    Margin("CPU time", 0.15, lambda figure: figure.unit.startswith("CPU")),
    Margin("other times, and whatever else is better when it is less", 0.25, lambda figure: _less(figure)),
    Margin("throughput", 0.15, lambda figure: figure.better == "more"),
)
"""The first one that matches is a figure's margin. A fixed limit has no noise, so all noise is in the figure."""

Verdict = Literal["worse", "gone", "better", "as before", "new", "no ratio"]


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before and now; ``None`` if it is missing or has no peer."""

    program: str
    name: str
    verdict: Verdict
    margin: Margin | None = None
    before: float | None = None
    now: float | None = None

    @property
    def fails(self) -> bool:
        return self.verdict in ("worse", "gone")


def _named(figure: Figure, *words: str) -> bool:
    return any(word in figure.name.replace(",", " ").split() for word in words)


def _less(figure: Figure) -> bool:
    return figure.better == "less"


def margin_of(figure: Figure) -> Margin:
    """Return the margin of a figure's kind."""
    return next(margin for margin in MARGINS if margin.holds(figure))


def verdict(before: float, now: float, better: str, part: float) -> Verdict:
    """Compare two ratios; both directions have the same margin."""
    gain = now / before - 1 if better == "more" else 1 - now / before
    if gain < -part:
        return "worse"
    return "better" if gain > part else "as before"


def changes(results: Results, baseline: Results) -> Iterator[Change]:
    """Yield every figure of both, in the order of the baseline, then the new ones."""
    now = {(outcome.name, figure.name): figure for outcome, figure in results.figures()}
    known = set()
    for outcome, figure in baseline.figures():
        known.add(key := (outcome.name, figure.name))
        if key in now:
            yield _change(outcome.name, figure, now[key])
        elif _expected(outcome, figure, results, baseline):
            yield Change(outcome.name, figure.name, "gone", before=figure.ratio)
    for key, figure in now.items():
        if key not in known:
            yield Change(*key, "new", now=figure.ratio)


def _change(program: str, before: Figure, now: Figure) -> Change:
    if not before.ratio:
        return Change(program, now.name, "no ratio" if not now.ratio else "new", now=now.ratio)
    if not now.ratio:
        return Change(program, now.name, "gone", before=before.ratio)
    margin = margin_of(now)
    found = verdict(before.ratio, now.ratio, now.better, margin.part)
    return Change(program, now.name, found, margin, before.ratio, now.ratio)


def _expected(outcome: Outcome, figure: Figure, results: Results, baseline: Results) -> bool:
    """Return whether a missing figure should be there: its program was not left out by name and its peer is available.
    """
    if not results.about["whole"] and all(outcome.name != each.name for each in results.outcomes):
        return False
    away = set(baseline.about["peers"]) - set(results.about["peers"])
    words = f"{outcome.name} {figure.name} {figure.peer_name}".lower()
    return not any(peer.partition("-")[0] in words for peer in away)


def better_of(first: Outcome, second: Outcome) -> Outcome:
    """Combine the figures of two runs of a program, each with the better ratio."""
    figures = {figure.name: figure for figure in first.figures}
    for figure in second.figures:
        known = figures.get(figure.name)
        if known is None or not known.ratio or (figure.ratio and verdict_is_better(known, figure)):
            figures[figure.name] = figure
    return replace(first, figures=tuple(figures.values()), failed=first.failed and second.failed)


def verdict_is_better(known: Figure, figure: Figure) -> bool:
    """Return whether ``figure`` has the better ratio; both have one."""
    assert known.ratio is not None
    assert figure.ratio is not None
    return verdict(known.ratio, figure.ratio, figure.better, 0.0) == "better"


def second_try(results: Results, names: Iterable[str], programs: Sequence[Program], folder: Path) -> Results:
    """Run the programs of these names once more; return the better figures of both runs."""
    files = {program.name: program for program in programs}
    outcomes = []
    for outcome in results.outcomes:
        if outcome.name in names and outcome.name in files:
            outcome = better_of(outcome, suite.run(files[outcome.name], outcome.arguments, folder))
        outcomes.append(outcome)
    return replace(results, outcomes=tuple(outcomes))


def print_changes(found: Sequence[Change]) -> None:
    """Print the table of figures that are worse, better or new, and the number of the others."""
    order: list[Verdict] = ["worse", "gone", "better", "new"]
    rows = sorted((change for change in found if change.verdict in order), key=lambda each: order.index(each.verdict))
    if rows:
        print("\n| figure | program | ratio before | now | change | margin | |\n|---|---|---|---|---|---|---|")
    for each in rows:
        before, now = ("" if ratio is None else number(ratio) for ratio in (each.before, each.now))
        change = f"{each.now / each.before - 1:+.0%}" if each.before and each.now else ""
        margin = f"{each.margin.part:.0%}" if each.margin else ""
        word = each.verdict.upper() if each.fails else each.verdict
        print(f"| {each.name} | {each.program} | {before} | {now} | {change} | {margin} | {word} |")
    same = sum(change.verdict == "as before" for change in found)
    without = sum(change.verdict == "no ratio" for change in found)
    print(f"\n{same} ratios as before within their margins; {without} figures have no peer and are not compared")


def print_margins() -> None:
    print("| a ratio of | may be worse by |\n|---|---|")
    for margin in MARGINS:
        print(f"| {margin.kind} | {margin.part:.0%} |")


def notes(results: Results, baseline: Results) -> Iterator[str]:
    """Yield reasons why the comparison may be misleading."""
    for name, before in baseline.about["machine"].items():
        now = results.about["machine"].get(name, "unknown")
        if now != before:
            yield f"note: {name} is {now}, was {before} when the baseline was recorded"
    given = {outcome.name: outcome.arguments for outcome in baseline.outcomes}
    for outcome in results.outcomes:
        if outcome.arguments != given.get(outcome.name, outcome.arguments):
            was = " ".join(given[outcome.name])
            yield f"note: {outcome.name} was given {' '.join(outcome.arguments)}, for the baseline {was}"
    if results.about["load before"][0] > 1:
        yield f"note: the load was {results.about['load before'][0]} before the first program: not a quiet machine"


def record(results: Results, file: Path) -> int:
    """Make ``results`` the baseline, unless they are incomplete."""
    if results.failed or results.about["quick"] or not results.about["whole"]:
        print(
            "not recorded: a baseline is a run of the suite with --all, not quick, without a failure", file=sys.stderr
        )
        return 2
    results.write(file)
    print(f"recorded in {file.name}: {sum(1 for _ in results.figures())} figures of commit {results.about['commit']}")
    return 0


def check(results: Results, baseline: Results, programs: Sequence[Program], folder: Path, retry: bool) -> int:
    """Print the changes; return the exit status."""
    print_margins()
    print(*notes(results, baseline), sep="\n")
    found = list(changes(results, baseline))
    if retry and (programs_failed := {change.program for change in found if change.fails}):
        print(f"\nonce more, because they failed: {', '.join(sorted(programs_failed))}")
        results = second_try(results, programs_failed, programs, folder)
        found = list(changes(results, baseline))
    print_changes(found)
    failed = [change for change in found if change.fails]
    print(f"{len(failed)} of {len(found)} figures FAIL" if failed else "no regression")
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None, programs: Sequence[Program] = SUITE, folder: Path = FOLDER) -> int:
    """Run the check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", metavar="RESULTS", help="what the suite has written")
    parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="FILE", help="default: beside this program")
    parser.add_argument("--record", action="store_true", help="make RESULTS the baseline")
    parser.add_argument("--no-second-try", action="store_true", help="run nothing again")
    given = parser.parse_args(arguments)
    if not given.record and not given.baseline.exists():
        print(f"there is no {given.baseline.name} yet: record one with RESULTS --record", file=sys.stderr)
        return 2
    try:
        baseline = None if given.record else Results.read(given.baseline)
        if given.results is None:
            suite.main([], programs, folder)
        results = Results.read(given.results or Path("bench") / suite.RESULTS)
    except WrongResults as wrong:
        print(wrong, file=sys.stderr)
        return 2
    if baseline is None:
        return record(results, given.baseline)
    return check(results, baseline, programs, folder, not given.no_second_try)


if __name__ == "__main__":
    sys.exit(main())
