"""Run histories of a pair in memory: ``python -m faults.simulation --seeds 1000 --first 0``."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import Final

from faults.simulation.history import run_history
from faults.simulation.mistakes import MISTAKES, first_failure

INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit status of a program that SIGINT ended."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.mistakes:
        return print_mistakes(options.seeds)
    if options.trace is not None:
        return print_history(options.trace)
    return run(options.first, options.seeds, options.failures)


def run(first: int, seeds: int, failures_max: int) -> int:
    """Print each seed that fails, and what all of them have tried, also at Ctrl-C.

    Returns the exit status: 1 if a seed has failed, else ``INTERRUPTED`` if not all of them were run, else 0.
    """
    began, failures, interrupted = time.monotonic(), 0, False
    count = puts = promotions = accidents = 0
    try:
        for seed in range(first, first + seeds):
            outcome = run_history(seed)
            count += 1
            puts, promotions = puts + outcome.puts, promotions + outcome.promotions
            accidents += outcome.accidents
            if outcome.violation is not None:
                failures += 1
                print(f"seed {seed}: {outcome.violation}; its history: make simulate TRACE={seed}", flush=True)
                if failures >= failures_max:
                    break
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.monotonic() - began
    print(
        f"{count} histories, {failures} with a violation, in {seconds:.0f} s ({count / seconds * 60:.0f} a minute): "
        f"{accidents} accidents, {promotions} promotions, {puts} acknowledged puts"
    )
    return 1 if failures else INTERRUPTED if interrupted else 0


def print_history(seed: int) -> int:
    """Print the history of a seed, an event or an action a line; return whether it breaks an invariant."""
    outcome = run_history(seed, has_trace=True)
    print("\n".join(outcome.lines))
    print(f"seed {outcome.seed}: {outcome.violation or 'every invariant holds'}")
    return int(outcome.violation is not None)


def print_mistakes(seeds: int) -> int:
    """Print a row for each planted mistake; return how many were not found."""
    missing = 0
    for name, mistake in MISTAKES.items():
        outcome = first_failure(mistake, seeds)
        missing += outcome is None
        violation = None if outcome is None else outcome.violation
        seed = "none" if outcome is None else outcome.seed
        print(f"| {name} | {mistake.effect} | {seed} | {violation.number if violation else '-'} |", flush=True)
    return missing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m faults.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many failing seeds")
    parser.add_argument("--trace", type=int, default=None, metavar="SEED", help="print the history of one seed")
    parser.add_argument("--mistakes", action="store_true", help="plant mistakes, and print a row for each")
    return parser


if __name__ == "__main__":
    sys.exit(main())
