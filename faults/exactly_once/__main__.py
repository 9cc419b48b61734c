"""``python -m faults.exactly_once``: parses the arguments, runs the kills and the zombies, prints the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from faults import console
from faults.console import count, report, run
from faults.exactly_once.fault_run import FaultRun, RunTrouble
from faults.exactly_once.planned_kills import SHORT, Delivery, schedule
from faults.exactly_once.zombie import RETURNS, bring_back

KILLS: Final = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no guarantee was broken, 1 one was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    return run("exactly once", options, partial(_run, options), RunTrouble)


def _run(options: argparse.Namespace, base: Path) -> None:
    plan = list(SHORT) if options.short else schedule(options.seed, options.kills, options.delivery)
    fault_run = FaultRun(base / "kills", options.seed, options.delivery, report)
    returns = RETURNS if options.delivery is Delivery.EXACTLY_ONCE and not options.no_zombies else ()

    def zombies(fault_run: FaultRun) -> None:
        fault_run.drain()
        for number, at in enumerate(returns, 1):
            report(f"zombie {number}/{len(returns)}: {bring_back(fault_run, at)}")

    try:
        fault_run.run(plan, zombies)
    finally:
        for line in fault_run.figures.lines():
            report(line)


def _parser() -> argparse.ArgumentParser:
    parser = console.parser("faults.exactly_once", "Try to make a Spark query lose or repeat a message.")
    parser.add_argument("--kills", type=count, default=KILLS, help=f"default {KILLS}")
    parser.add_argument("--short", action="store_true", help="the five kills of the short test instead")
    parser.add_argument(
        "--delivery", type=Delivery, choices=list(Delivery), default=Delivery.EXACTLY_ONCE, help="default exactly_once"
    )
    parser.add_argument("--no-zombies", action="store_true", help="no drivers that come back from the dead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
