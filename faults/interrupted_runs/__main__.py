"""``python -m faults.interrupted_runs``: interrupts consumers, and reports skipped and repeated messages."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from faults import console
from faults.console import PromiseBroken, count, report, run
from faults.interrupted_runs.checker import Broken
from faults.interrupted_runs.rounds import CLIENTS, Rounds
from metaq.testing.broker_process import BrokerProcess

ROUNDS: Final = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no guarantee was broken, 1 one was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    return run("interrupted runs", options, partial(_run, options))


def _run(options: argparse.Namespace, base: Path) -> None:
    os.environ["XDG_STATE_HOME"] = str(base)  # the folder of consumers' offsets
    with BrokerProcess(base, partitions=2) as broker:
        for name in options.client or CLIENTS:
            try:
                report(f"  {Rounds(broker, name, options.rounds, Random(f'{options.seed} {name}')).run()}")
            except Broken as broken:
                raise PromiseBroken(base, [f"{name}: {broken}"]) from broken


def _parser() -> argparse.ArgumentParser:
    parser = console.parser("faults.interrupted_runs", "Interrupt consumers while their handlers run.")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"of each client, default {ROUNDS}")
    parser.add_argument("--client", action="append", choices=CLIENTS, help="only these, instead of all four")
    return parser


if __name__ == "__main__":
    sys.exit(main())
