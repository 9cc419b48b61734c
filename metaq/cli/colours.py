"""Colours for people at a terminal; never in a file or a pipe.

``NO_COLOR`` (https://no-color.org) and ``TERM=dumb`` turn them off.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, TextIO

CLEAR_LINE: Final = "\r\x1b[K"
BOLD, RED, GREEN, YELLOW = "1", "31", "32", "33"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that can move its cursor."""
    if stream is None or os.environ.get("TERM") == "dumb":
        return False
    with suppress(ValueError):  # closed
        return stream.isatty()
    return False


def painted(text: str, colour: str, stream: TextIO | None) -> str:
    """Return ``text`` in a colour if ``stream`` is a terminal and the user wants colours."""
    return f"\x1b[{colour}m{text}\x1b[0m" if is_terminal(stream) and not os.environ.get("NO_COLOR") else text


def fresh_line(stream: TextIO | None) -> str:
    """Return what removes a status line of a terminal before something else is written to it."""
    return CLEAR_LINE if is_terminal(stream) else ""
