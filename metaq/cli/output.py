"""Tables for people and JSON for programs."""

from __future__ import annotations

import base64
import datetime
import json
import sys
from collections.abc import Mapping, Sequence


def print_rows(rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print rows as a table with ``columns``, numbers to the right; with ``as_json`` as one JSON object a line.

    The JSON has all that is in the rows, also what is in no column.
    """
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    numeric = [all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns]
    for line in [list(columns), *cells]:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(parts).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def time_text(ms: int | None) -> str | None:
    """Return ms since 1970 as ISO 8601 in UTC; ``None`` for ``None``."""
    if ms is None:
        return None
    moment = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
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
    """Print a line for the user that is not part of the output."""
    print(text, file=sys.stderr)


def counted(count: int, noun: str = "message") -> str:
    """Return a number with its noun: ``1 message``, ``2,000 messages``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
