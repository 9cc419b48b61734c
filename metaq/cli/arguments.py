"""Times, starts and counts as several commands take them."""

from __future__ import annotations

import argparse
import datetime
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from metaq.client.browser import Start
    from metaq.model import Partition

_SPAN: Final = re.compile(r"(\d{1,9})([smhd])")
_SPAN_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def now_ms() -> int:
    """Return the time in ms since 1970."""
    return int(datetime.datetime.now().timestamp() * 1000)


def parse_start(text: str, partitions: list[Partition] | None, clock_ms: Callable[[], int] = now_ms) -> Start:
    """Parse the argument of ``--from``; ``clock_ms`` is the clock, in ms since 1970.

    Raises:
        ValueError: It has none of the allowed forms, or is an offset without exactly one partition.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        if partitions is None or len(partitions) != 1:
            raise ValueError(f"--from {text}: an offset needs exactly one --partition")
        return {partitions[0]: int(text)}
    return parse_time(text, "--from", clock_ms)


def parse_time(text: str, option: str, clock_ms: Callable[[], int] = now_ms, *, needs_zone: bool = False) -> int:
    """Parse a time as ms since 1970: ISO 8601 (local time without an offset), ``@MS``, or a span back from now.

    Raises:
        ValueError: It has none of these forms, or, with ``needs_zone``, is local time.
    """
    if re.fullmatch(r"@\d{1,15}", text):
        return int(text[1:])
    if match := _SPAN.fullmatch(text):
        return max(0, clock_ms() - int(match[1]) * _SPAN_S[match[2]] * 1000)
    try:
        moment = datetime.datetime.fromisoformat(text)
        time_ms = max(0, int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        expected = "a time such as 2026-01-31T12:00:00Z, @1700000000000 or 15m"
        also = "earliest, latest, an offset, or " if option == "--from" else ""
        raise ValueError(f"{option} {text}: expected {also}{expected}") from None
    if needs_zone and moment.tzinfo is None:
        expected = "2026-01-31T12:00:00Z or 2026-01-31T20:00:00+08:00"
        raise ValueError(f"{option} {text}: a time without a zone; expected one such as {expected}")
    return time_ms


def topic_name(text: str) -> str:
    """Parse the name of a topic for argparse; servers check its letters."""
    if not text:
        raise argparse.ArgumentTypeError("'': expected the name of a topic")
    return text


def span_s(text: str) -> int:
    """Parse a span, such as ``90s`` or ``15m``, for argparse; return seconds."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a span such as 90s, 15m, 12h or 7d")
    return int(match[1]) * _SPAN_S[match[2]]


def above_zero(text: str) -> int:
    """Read a number for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return int(text)
