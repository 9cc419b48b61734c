"""``python -m faults.interrupted_runs``: interrupts consumers, and reports skipped and repeated messages."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from faults.console import EXIT_OK, complain, count, report
from faults.interrupted_runs.checker import Broken
from faults.interrupted_runs.rounds import CLIENTS, Rounds
from metaq.testing.broker_process import BrokerProcess

ROUNDS: Final = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no guarantee was broken, 1 one was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    report(f"interrupted runs: seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="metaq-interrupted-") as folder:
        os.environ["XDG_STATE_HOME"] = folder  # the folder of consumers' offsets
        with BrokerProcess(Path(folder), partitions=2) as broker:
            for name in options.client or CLIENTS:
                try:
                    report(f"  {Rounds(broker, name, options.rounds, Random(f'{options.seed} {name}')).run()}")
                except Broken as broken:
                    return complain("interrupted runs", [f"{name}: {broken}"], options.seed)
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m faults.interrupted_runs", description="Interrupt consumers while their handlers run."
    )
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"of each client, default {ROUNDS}")
    parser.add_argument("--client", action="append", choices=CLIENTS, help="only these, instead of all four")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="default: random, printed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
