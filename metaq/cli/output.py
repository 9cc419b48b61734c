"""Tables for people and JSON for programs."""

from __future__ import annotations

import base64
import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from metaq.cli.colours import BOLD, fresh_line, painted

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def print_rows(rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print rows as a table with ``columns``, numbers to the right; with ``as_json`` as one JSON object a line.

    The JSON has all fields of the rows, including fields without a column.
    """
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(width_of, column)) for column in zip(columns, *cells, strict=True)]
    numeric = [all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns]
    for number, line in enumerate([list(columns), *cells]):
        parts = [
            " " * (width - width_of(cell)) + cell if right else cell + " " * (width - width_of(cell))
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        text = "  ".join(parts).rstrip()
        print(text if number else painted(text, BOLD, sys.stdout))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _printable(str(value))


def _printable(text: str) -> str:
    """Escape characters that control a terminal, such as line ends."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for a Chinese character, none for an accent."""
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) > 0 for one in text)


def shortened(text: str, columns: int) -> str:
    """Return the beginning of a text that fits into so many columns of a terminal."""
    if width_of(text) <= columns:
        return text
    end, left = 0, columns
    while (left := left - width_of(text[end])) >= 0:
        end += 1
    return text[:end]


def time_text(ms: int | None) -> str | None:
    """Return ms since 1970 as ISO 8601 in UTC, as ``@MS`` outside of the years 1 to 9999; ``None`` for ``None``."""
    if ms is None:
        return None
    try:
        moment = _EPOCH + datetime.timedelta(milliseconds=ms)
    except OverflowError:
        return f"@{ms}"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span_text(seconds: int | None) -> str | None:
    """Return a time span in its two largest units, such as ``3d 4h``; ``None`` for ``None``."""
    if seconds is None:
        return None
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    units = [f"{count}{unit}" for count, unit in ((days, "d"), (hour, "h"), (minute, "m"), (second, "s"))]
    first = next((number for number, count in enumerate((days, hour, minute)) if count), 3)
    return " ".join(units[first : first + 2])


def json_value(data: bytes) -> dict[str, str]:
    """Return ``{"value": text}``, or ``{"value_base64": ...}`` for bytes that are not UTF-8."""
    try:
        return {"value": data.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(data).decode()}


def note(text: str) -> None:
    """Print a line for the user that is not part of the output, if there is somewhere to print it."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(fresh_line(sys.stderr) + text, file=sys.stderr)


def counted(count: int, noun: str = "message") -> str:
    """Return a number with its noun: ``1 message``, ``2,000 messages``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
