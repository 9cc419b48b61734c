"""``python -m faults.fuzz``: sends all kinds of commands to a broker and prints the result."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from faults.console import EXIT_FOUND, EXIT_OK, report
from faults.fuzz.attacker import FuzzFinding
from faults.fuzz.fuzz_run import FuzzOptions, FuzzRun

FRAMES: Final = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 nothing was found, 1 something was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    base = Path(options.folder or tempfile.mkdtemp(prefix="metaq-fuzz-"))
    print(f"fuzz: seed {options.seed}, data in {base}", flush=True)
    fuzz_run = FuzzRun(FuzzOptions(options.seed, options.frames, options.attackers), base, report)
    try:
        report(f"fuzz: {fuzz_run.run()}")
    except FuzzFinding as finding:
        print(f"fuzz: {finding}\nkept: {fuzz_run.folder}\nfuzz: seed {options.seed}", file=sys.stderr)
        return EXIT_FOUND
    if not options.folder:
        base.rmdir()
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m faults.fuzz", description="Fuzz the broker's port.")
    parser.add_argument("--frames", type=int, default=FRAMES, help=f"commands to send, default {FRAMES:,}")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="default: random, printed")
    parser.add_argument("--attackers", type=int, default=4, help="connections at a time, default 4")
    parser.add_argument("--folder", help="put the data folder here (default: a temporary one, removed if all is well)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
