"""``python -m faults.restarts``: parses the arguments, runs the rounds of each format, prints the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from faults import console
from faults.console import count, report, run
from faults.restarts.rounds import Rounds

ROUNDS: Final = 100
FORMATS: Final = ("metaq", "rocketmq")
DELIVERIES: Final = ("at_least_once", "exactly_once")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no query ended and every message was copied, 1 otherwise, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    return run("restarts", options, partial(_run, options))


def _run(options: argparse.Namespace, base: Path) -> None:
    for name in options.format or FORMATS:
        for delivery in options.delivery or DELIVERIES:
            rounds = Rounds(base / f"{name}-{delivery}", name, delivery, options.seed)
            report(f"restarts: {name}, {delivery}: {rounds.run(options.rounds, report)}")


def _parser() -> argparse.ArgumentParser:
    parser = console.parser("faults.restarts", "Restart a broker in the middle of a query's micro-batches.")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"restarts of each query; default {ROUNDS}")
    parser.add_argument("--format", action="append", choices=FORMATS, help="default: all; may be repeated")
    parser.add_argument("--delivery", action="append", choices=DELIVERIES, help="default: both; may be repeated")
    return parser


if __name__ == "__main__":
    sys.exit(main())
