"""``python -m faults.codec_fuzz``: feeds all kinds of bytes to the decoders of RocketMQ's protocol."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections.abc import Sequence
from typing import Final

from faults.codec_fuzz.inputs import Inputs, recorded
from faults.codec_fuzz.trial import Finding, Trial
from faults.console import EXIT_OK, complain, report

FRAMES: Final = 1_000_000
STEP: Final = 1_000
REPORT_EVERY: Final = 100_000
HANG_S: Final = 600
"""Seconds for one step, after which the process dumps its stacks and exits."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 nothing was found, 1 something was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    print(f"codec fuzz: seed {options.seed}", flush=True)
    trial = Trial(Inputs(options.seed, recorded()), options.seed, options.seconds, options.memory)
    try:
        for done in range(0, options.frames, STEP):
            faulthandler.dump_traceback_later(HANG_S, exit=True, file=sys.__stderr__ or sys.stderr)
            trial.run(min(STEP, options.frames - done))
            if done % REPORT_EVERY == 0:
                report(f"codec fuzz: {trial.tally}")
    except Finding as finding:
        return complain("codec fuzz", [str(finding)], options.seed)
    finally:
        faulthandler.cancel_dump_traceback_later()
    report(f"codec fuzz: {trial.tally}")
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m faults.codec_fuzz", description="Fuzz RocketMQ's decoders.")
    parser.add_argument("--frames", type=int, default=FRAMES, help=f"inputs, default {FRAMES:,}")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="default: random, printed")
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of CPU seconds for one input, default 20")
    parser.add_argument("--memory", type=int, default=700, help="limit of memory of the process in MiB, default 700")
    return parser


if __name__ == "__main__":
    sys.exit(main())
