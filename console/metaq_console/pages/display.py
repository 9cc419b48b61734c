"""How numbers, sizes, times and rates are written on a page."""

from __future__ import annotations

import datetime
import math
from typing import Final

from markupsafe import Markup

from metaq_console.pages.decoders import visible

NOTHING: Final = "\u2013"
"""Stands where a server does not report a figure."""

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS: Final = ((86_400, "d"), (3600, "h"), (60, "min"))


def number(value: float | None) -> str:
    """Return a count with separators, such as ``1,234,567``."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.2f}"


def size(value: float | None) -> str:
    """Return bytes in the unit that leaves at most four digits, such as ``1.5 MiB``."""
    if value is None:
        return NOTHING
    steps = 0
    while abs(value) >= 1024 and steps < len(_SIZES) - 1:
        value, steps = value / 1024, steps + 1
    digits = 0 if steps == 0 or abs(value) >= 100 else 1
    return f"{value:,.{digits}f} {_SIZES[steps]}"


def rate(value: float | None) -> str:
    """Return a count a second with three digits."""
    if value is None:
        return NOTHING
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def span(seconds: float | None) -> str:
    """Return a span in its two largest units, such as ``2 h 5 min``; below a minute in seconds."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"
    parts: list[str] = []
    rest = int(seconds)
    for length, unit in _SPANS:
        if rest >= length and len(parts) < 2:
            parts.append(f"{rest // length} {unit}")
        rest %= length
    return " ".join(parts)


def moment(ms: int | None, whole: bool = False) -> Markup:
    """Return an element for a time in ms since 1970: UTC, until the page shows it in the browser's zone.

    ``whole``: with the date even if it is today.
    """
    if ms is None:
        return Markup(NOTHING)
    try:
        at = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):  # such as the year 60000 in a hostile message
        return Markup("{}").format(f"@{ms}")
    text = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time data-ms="{}"{} datetime="{}">{}</time>').format(
        ms, Markup(" data-whole") if whole else "", at.isoformat(), text
    )


def name(value: object) -> Markup:
    """Return a name that others chose, in a frame of its own: hidden characters shown, and of its own direction."""
    return Markup("<bdi>{}</bdi>").format(visible(str(value)))


FILTERS: Final = {"number": number, "size": size, "rate": rate, "span": span, "moment": moment, "name": name}
"""Filters of the templates."""
