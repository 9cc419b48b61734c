"""``python -m faults.groups``: parses the arguments, runs the rounds, prints the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from faults import console
from faults.console import count, report
from faults.groups import broker_rounds, rounds

ROUNDS: Final = 100

RUNS: Final = {"zookeeper": rounds.run, "brokers": broker_rounds.run}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no guarantee was broken, 1 one was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    return console.run("groups", options, partial(_run, options))


def _run(options: argparse.Namespace, base: Path) -> None:
    for line in RUNS[options.at](base, options.rounds, options.seed, report).lines():
        report(line)


def _parser() -> argparse.ArgumentParser:
    parser = console.parser("faults.groups", "Try to make consumers in a group lose or repeat a message.")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--at", choices=RUNS, default="zookeeper", help="who keeps the group; default %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
