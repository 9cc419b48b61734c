"""What the commands of this package have in common at the terminal: arguments that count, and how they report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

EXIT_OK: Final = 0
EXIT_FOUND: Final = 1


def report(line: str) -> None:
    """Print a line and flush."""
    print(line, flush=True)


def complain(command: str, lines: Sequence[str], seed: int) -> int:
    """Print the findings and how to reproduce them; return the exit status."""
    for line in lines:
        print(line, file=sys.stderr)
    print(f"{command}: a promise was broken; seed {seed}", file=sys.stderr)
    return EXIT_FOUND


def count(text: str) -> int:
    """Parse a whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 on")
    return int(text)
