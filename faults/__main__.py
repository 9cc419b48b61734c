"""``python -m faults``: parses the arguments, runs the kill loop and the scenarios, prints the results."""

from __future__ import annotations

import argparse
import gc
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from faults import console
from faults.console import count, report, run
from faults.kill_loop import KillLoop, KillOptions
from faults.load.workers import WorkersFailed
from faults.scenarios import SCENARIOS, Skipped, Stage

KILL: Final = "kill"
PARTS: Final = (KILL, *SCENARIOS)
ROUNDS: Final = 200
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no guarantee was broken, 1 one was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    return run("faults", options, partial(_run, options), WorkersFailed)


def _run(options: argparse.Namespace, base: Path) -> None:
    # Histories are millions of small objects without cycles; collecting them again and again takes half the time.
    gc.disable()
    parts = options.only or PARTS
    if KILL in parts:
        duration_s = options.duration or 0.0
        rounds = options.rounds if options.rounds is not None else (0 if duration_s else ROUNDS)
        series, haste = options.rounds_per_series, options.haste
        wanted = KillOptions(options.seed, rounds, duration_s, series, options.retention, haste, options.rocketmq)
        loop = KillLoop(wanted, base, report)
        try:
            loop.run()
        finally:
            report(f"kill loop: {loop.figures.rounds} rounds")
            for line in loop.figures.lines():
                report(f"  {line}")
    for name in parts:
        if name in SCENARIOS:
            _scenario(name, Stage(base, str(options.seed), options.haste))


def _scenario(name: str, stage: Stage) -> None:
    began = time.monotonic()
    try:
        sentence = SCENARIOS[name](stage)
    except Skipped as reason:
        report(f"{name}: skipped: {reason}")
    else:
        report(f"{name}: {sentence} ({time.monotonic() - began:.1f} s)")


def _parser() -> argparse.ArgumentParser:
    parser = console.parser("faults", "Try to make the broker lose a message.")
    parser.add_argument("--rounds", type=count, help=f"rounds of the kill loop, default {ROUNDS} or until --duration")
    parser.add_argument("--duration", type=_duration, help="begin no round of the kill loop after this: 90, 30m, 2h")
    parser.add_argument("--only", action="append", choices=PARTS, help="run this part alone; may be repeated")
    parser.add_argument("--rounds-per-series", type=count, default=12, help="rounds on one data folder, default 12")
    parser.add_argument("--retention", action="store_true", help="let the broker delete old segments in the kill loop")
    parser.add_argument("--rocketmq", action="store_true", help="RocketMQ's clients, too, in the kill loop")
    parser.add_argument("--haste", action="store_true", help="shorter rounds and scenarios")
    return parser


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, or a number with s, m or h")
    return float(match[1]) * _UNITS[match[2]]


if __name__ == "__main__":
    sys.exit(main())
