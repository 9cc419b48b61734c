"""Terminals."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, TextIO

COLUMNS: Final = 80


def columns_of(stream: TextIO) -> int:
    """Return the width of the terminal that ``stream`` is; 80 if the terminal does not know it."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or COLUMNS
    return COLUMNS
