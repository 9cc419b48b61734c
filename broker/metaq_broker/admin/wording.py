"""Numbers, times and tables as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def size(byte_count: int) -> str:
    """Return ``1.5 GiB``."""
    amount, unit = float(byte_count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{byte_count} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def span(seconds: float) -> str:
    """Return ``3 h 12 min``: the two largest units that say something."""
    left, words = int(seconds), []
    for length, unit in _SPANS:
        if left >= length:
            words.append(f"{left // length} {unit}")
            left %= length
    return " ".join(words[:2]) or "0 s"


def count(number: int, noun: str) -> str:
    """Return ``1 message`` or ``1,234 messages``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table: columns of numbers to the right, the others to the left."""
    if not rows:
        return []
    numeric = [all(isinstance(row[column], int) for row in rows) for column in range(len(head))]
    texts = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
    lines = []
    for row in texts:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def facts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines of names and values, the values below each other."""
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"{name.ljust(width)}  {value}".rstrip() for name, value in pairs]
