"""``python -m faults.fuzz``: sends all kinds of commands to a broker and prints the result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from faults import console
from faults.console import report, run
from faults.fuzz.attacker import FuzzFinding
from faults.fuzz.fuzz_run import FuzzOptions, FuzzRun

FRAMES: Final = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 nothing was found, 1 something was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    return run("fuzz", options, partial(_run, options), FuzzFinding)


def _run(options: argparse.Namespace, base: Path) -> None:
    report(f"fuzz: {FuzzRun(FuzzOptions(options.seed, options.frames, options.attackers), base, report).run()}")


def _parser() -> argparse.ArgumentParser:
    parser = console.parser("faults.fuzz", "Fuzz the broker's port.")
    parser.add_argument("--frames", type=int, default=FRAMES, help=f"commands to send, default {FRAMES:,}")
    parser.add_argument("--attackers", type=int, default=4, help="connections at a time, default 4")
    return parser


if __name__ == "__main__":
    sys.exit(main())
