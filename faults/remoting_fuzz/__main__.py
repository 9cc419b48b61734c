"""``python -m faults.remoting_fuzz``: sends all kinds of frames to the codec, the name server and the client."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from faults import console
from faults.console import count, report
from faults.fuzz.attacker import FuzzFinding
from faults.remoting_fuzz.client import fuzz_client
from faults.remoting_fuzz.codec import fuzz_codec
from faults.remoting_fuzz.name_server import fuzz_name_server

FRAMES: Final = 1_000_000
CODEC_SHARE, CLIENT_SHARE = 0.4, 0.3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 nothing was found, 1 something was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    return console.run(
        "remoting fuzz", options, partial(run, options.seed, options.frames, options.attackers), FuzzFinding
    )


def run(seed: int, frames: int, attackers: int, base: Path) -> None:
    """Fuzz codec, name server and client, with ``frames`` frames in total.

    Raises:
        FuzzFinding: Something was found.
    """
    codec, client = int(frames * CODEC_SHARE), int(frames * CLIENT_SHARE)
    began = time.monotonic()
    commands, errors = fuzz_codec(f"{seed}", codec)
    took_s = time.monotonic() - began
    report(f"codec: {codec:,} frames in {took_s:.0f} s, {commands:,} commands, {errors:,} streams ended by an error")
    report(fuzz_client(seed, client))
    report(fuzz_name_server(seed, frames - codec - client, attackers, base))


def _parser() -> argparse.ArgumentParser:
    parser = console.parser("faults.remoting_fuzz", "Fuzz RocketMQ's protocol.")
    parser.add_argument("--frames", type=count, default=FRAMES, help=f"frames in all, default {FRAMES:,}")
    parser.add_argument(
        "--attackers", type=count, default=4, help="connections to the name server at a time, default 4"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
