"""Run histories: ``python -m faults.simulation --seeds 1000 [--first N] [--trace SEED] [--mistakes]``."""

from __future__ import annotations

import argparse
import sys
import time

from faults.simulation.history import run_history
from faults.simulation.mistakes import MISTAKES, first_failure


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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--trace", type=int, default=None, metavar="SEED", help="print the history of one seed")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many failing seeds")
    parser.add_argument(
        "--mistakes", action="store_true", help="plant mistakes, and print the table of docs/testing.md"
    )
    options = parser.parse_args(arguments)
    if options.mistakes:
        return print_mistakes(options.seeds)
    if options.trace is not None:
        outcome = run_history(options.trace, has_trace=True)
        print("\n".join(outcome.lines))
        print(f"seed {outcome.seed}: {outcome.violation or 'every invariant holds'}")
        return int(outcome.violation is not None)
    began, puts, promotions, accidents, failures = time.monotonic(), 0, 0, 0, 0
    for seed in range(options.first, options.first + options.seeds):
        outcome = run_history(seed)
        puts, promotions = puts + outcome.puts, promotions + outcome.promotions
        accidents += outcome.accidents
        if outcome.violation is not None:
            failures += 1
            print(f"seed {seed}: {outcome.violation}", flush=True)
            if failures >= options.failures:
                break
    seconds = time.monotonic() - began
    count = seed - options.first + 1
    print(
        f"{count} histories, {failures} with a violation, in {seconds:.0f} s ({count / seconds * 60:.0f} a minute): "
        f"{accidents} accidents, {promotions} promotions, {puts} acknowledged puts"
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
