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
from faults.groups import rounds

ROUNDS: Final = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no guarantee was broken, 1 one was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    return console.run("groups", options, partial(_run, options))


def _run(options: argparse.Namespace, base: Path) -> None:
    for line in rounds.run(base, options.rounds, options.seed, report).lines():
        report(line)


def _parser() -> argparse.ArgumentParser:
    parser = console.parser("faults.groups", "Try to make consumers in a group lose or repeat a message.")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"default {ROUNDS}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
