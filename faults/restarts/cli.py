"""``python -m faults.restarts``: parses the arguments, runs the rounds of each format, prints the results."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from faults.broker_process import BrokerTrouble
from faults.console import EXIT_OK, complain, count, report
from faults.restarts.rounds import QueryEnded, Rounds
from metaq.errors import MetaqError

ROUNDS: Final = 100
FORMATS: Final = ("metaq", "rocketmq")
DELIVERIES: Final = ("at_least_once", "exactly_once")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no query ended and every message was copied, 1 otherwise, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    base = Path(options.folder or tempfile.mkdtemp(prefix="metaq-restarts-"))
    report(f"restarts: seed {options.seed}, data in {base}")
    try:
        for name in options.format or FORMATS:
            for delivery in options.delivery or DELIVERIES:
                rounds = Rounds(base / f"{name}-{delivery}", name, delivery, options.seed)
                report(f"restarts: {name}, {delivery}: {rounds.run(options.rounds, report)}")
    except (QueryEnded, BrokerTrouble, MetaqError) as trouble:
        return complain("restarts", [str(trouble), f"kept: {base}"], options.seed)
    if not options.folder:
        shutil.rmtree(base)
    report("restarts: no query ended, and every copy is there")
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m faults.restarts", description="Restart a broker in the middle of a query's micro-batches."
    )
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"restarts of each query; default {ROUNDS}")
    parser.add_argument("--format", action="append", choices=FORMATS, help="default: all; may be repeated")
    parser.add_argument("--delivery", action="append", choices=DELIVERIES, help="default: both; may be repeated")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="default: random, printed")
    parser.add_argument("--folder", help="put data folders here (default: a temporary folder, removed if all is well)")
    return parser
