"""``python -m faults.groups``: parses the arguments, runs the rounds, prints the results."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from faults.console import EXIT_OK, complain, count, report
from faults.groups.rounds import PromiseBroken, run

ROUNDS: Final = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no guarantee was broken, 1 one was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    base = Path(tempfile.mkdtemp(prefix="metaq-groups-"))
    report(f"groups: {options.rounds} rounds, seed {options.seed}, data in {base}")
    try:
        figures = run(base, options.rounds, options.seed, report)
    except PromiseBroken as broken:
        return complain("groups", [*broken.report, f"kept: {broken.folder}"], options.seed)
    for line in figures.lines():
        report(line)
    shutil.rmtree(base)
    report("groups: every promise was kept")
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m faults.groups", description="Try to make consumers in a group lose or repeat a message."
    )
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="default: random, printed")
    return parser
