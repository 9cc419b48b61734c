"""Writes the figures of a run into docs/figures.md, between its two marks.

    python benchmarks/report.py [RESULTS] [--page docs/figures.md] [--ran]

Everything outside the marks is kept. The same results give the same page. ``--ran`` is for a page about a few programs:
it leaves out programs that did not run, and the margins.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from check import MARGINS
from figures import HEAD, Figure, Outcome, Results, WrongResults, number, row
from suite import BESIDE, FOLDER, SUITE

PAGE: Final = FOLDER.parent / "docs" / "figures.md"
BEGIN: Final = "<!-- figures: what follows is written by benchmarks/report.py -->"
END: Final = "<!-- end of the figures -->"


class WrongPage(Exception):
    """A page without the two marks."""


def replaced(page: str, figures: str) -> str:
    """The page with ``figures`` between its marks.

    Raises:
        WrongPage: The page does not have both of them once, in this order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise WrongPage(f"there must be one line {BEGIN} and below it one {END}")
    return f"{before}{BEGIN}\n\n{figures.strip()}\n\n{END}{after}"


def lines(results: Results, *, ran_only: bool = False) -> Iterator[str]:
    """Everything between the marks."""
    yield from _run(results)
    yield from ("", "### Aims", "", *_aims(results))
    for outcome in results.failed:
        yield from ("", f"`{outcome.name}` failed ({outcome.failed}) and has no figures.")
    for outcome in results.outcomes:
        yield from _table(outcome)
    yield from (
        "",
        "### Programs",
        "",
        "| name | program | shows | arguments in this run | seconds |",
        "|---|---|---|---|---|",
    )
    yield from _programs(results, ran_only)
    if ran_only:
        return
    yield from ("", "### Margins of `make bench-check`", "", "| a ratio of | may be worse by |", "|---|---|")
    yield from (f"| {margin.kind} | {margin.part:.0%} |" for margin in MARGINS)


def _run(results: Results) -> Iterator[str]:
    about = results.about
    loads = " and ".join(f"{about[when][0]:.2f}" for when in ("load before", "load after"))
    quick = " A smoke run: the amounts are too small for figures to quote." if about["quick"] else ""
    yield "### The run"
    yield ""
    yield f"`{about['command']}` at commit `{about['commit']}`, {about['date']}; {about['seconds']:.0f} s.{quick}"
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {name} | {value} |" for name, value in about["machine"].items())
    yield f"| load before and after | {loads} |"


def _aims(results: Results) -> Iterator[str]:
    aimed = [(outcome, figure) for outcome, figure in results.figures() if figure.met is not None]
    missed = [(outcome, figure) for outcome, figure in aimed if not figure.met]
    if not aimed:
        yield "No figure of this run has an aim."
        return
    yield f"{len(aimed) - len(missed)} of {len(aimed)} aims are met." + (" These are not:" if missed else "")
    if missed:
        yield from ("", "| figure | ratio | aim |", "|---|---|---|")
    yield from (f"| {figure.name} | {_ratio(figure)} | {_aim(figure)} |" for _, figure in missed)


def _ratio(figure: Figure) -> str:
    return "" if figure.ratio is None else number(figure.ratio)


def _aim(figure: Figure) -> str:
    return f"{'≥' if figure.better == 'more' else '≤'} {figure.aim:.2f}"


def _table(outcome: Outcome) -> Iterator[str]:
    if outcome.figures:
        yield from ("", f"### {outcome.title}", "", *HEAD)
        yield from (row(figure) for figure in outcome.figures)


def _programs(results: Results, ran_only: bool) -> Iterator[str]:
    ran = {outcome.name: outcome for outcome in results.outcomes}
    for program in (*SUITE, *BESIDE):
        outcome = ran.get(program.name)
        if ran_only and outcome is None:
            continue
        how = (
            f"`{' '.join(outcome.arguments)}` | {outcome.seconds:.0f}" if outcome else _not_run(program in SUITE) + " |"
        )
        yield f"| {program.name} | [`{program.command}`](../benchmarks/{program.file}) | {program.shows} | {how} |"


def _not_run(in_suite: bool) -> str:
    return "not in this run" if in_suite else "by hand: not part of the suite"


def write(results: Results, page: Path, *, ran_only: bool = False) -> None:
    """Write the page.

    Raises:
        WrongPage: The page does not have the marks; nothing is written.
    """
    text = replaced(page.read_text(encoding="utf-8"), "\n".join(lines(results, ran_only=ran_only)))
    page.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=Path("bench/results.json"), metavar="RESULTS")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    parser.add_argument("--ran", action="store_true", help="list only the programs of this run")
    given = parser.parse_args(arguments)
    try:
        write(Results.read(given.results), given.page, ran_only=given.ran)
    except (WrongResults, WrongPage) as wrong:
        print(wrong, file=sys.stderr)
        return 2
    print(f"{given.page.name} has the figures of {given.results}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
