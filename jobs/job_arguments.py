"""Types of command-line arguments that several jobs take."""

from __future__ import annotations

import argparse
import re


def pattern(text: str) -> str:
    """A regular expression of Python's, for argparse."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: not a regular expression ({error})") from None
    return text
