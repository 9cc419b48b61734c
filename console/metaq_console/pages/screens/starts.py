"""Times and starts as a visitor writes them: ``latest``, ``15m``, ``2026-01-31T12:00:00Z``, an offset."""

from __future__ import annotations

from typing import Literal

from metaq.cli.arguments import parse_time
from metaq_console.cluster.system import ReadStart
from metaq_console.errors import RequestFailed

Start = ReadStart | Literal["newest"]


def read_time(text: str, name: str) -> int:
    """Return a time in ms since 1970.

    Raises:
        RequestFailed: It has none of the forms that are allowed, or no zone: the server's is not the visitor's.
    """
    try:
        return parse_time(text, name, needs_zone=True)
    except ValueError as error:
        raise RequestFailed(400, "invalid_value", str(error)) from None


def read_start(text: str, partition: str | None) -> Start:
    """Return where to begin. Raises as ``read_time``, and for an offset without a partition."""
    if text in ("", "latest"):
        return "newest"
    if text == "earliest":
        return "earliest"
    if text.isdecimal() and text.isascii():
        if partition is None:
            raise RequestFailed(400, "invalid_value", f"from {text}: an offset needs one partition; choose it")
        if len(text) > 19:
            raise RequestFailed(400, "invalid_value", f"from {text[:30]}: an offset has at most 19 digits")
        return {partition: int(text)}
    return read_time(text, "from")
