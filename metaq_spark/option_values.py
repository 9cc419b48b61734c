"""How the text of an option is read. Each parser raises ``ValueError`` with a sentence that says what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from metaq.model import INT64_MAX, Address

MILLISECONDS_MAX: Final = 24 * 3600 * 1000
PAUSE_MS_MAX: Final = 10_000
COUNT_MAX: Final = 1000

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"(\d{1,18})([kmgt]?)b?")
_TOPIC: Final = re.compile(r"[^\s,/@*]+")


def addresses(text: str) -> tuple[Address, ...]:
    """``host:port`` separated by commas, in the order given, doubles dropped."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError("expected host:port, separated by commas, for example 127.0.0.1:8123")
    return tuple(dict.fromkeys(Address.parse(part) for part in parts))


def topic(text: str) -> str:
    """One topic name."""
    if not _TOPIC.fullmatch(text.strip()):
        raise ValueError("expected a topic name without spaces and without any of , / @ *")
    return text.strip()


def topics(text: str) -> tuple[str, ...]:
    """Topic names separated by commas, in the order given, doubles dropped."""
    names = [part for part in text.split(",") if part.strip()]
    if not names:
        raise ValueError("expected topic names, separated by commas")
    return tuple(dict.fromkeys(topic(name) for name in names))


def path(text: str) -> str:
    """The path of a file."""
    if not text.strip():
        raise ValueError("expected the path of a file")
    return text.strip()


def boolean(text: str) -> bool:
    """``true`` or ``false``, in any case."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("expected true or false")
    return word == "true"


def size(text: str) -> int:
    """Bytes, at least 1: a number, alone or with k, m, g or t (binary multiples) behind it."""
    match = _SIZE.fullmatch(text.strip().lower())
    total = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= total <= INT64_MAX:
        raise ValueError("expected a number of bytes of at least 1, such as 65536, 512k, 64m or 1g")
    return total


def size_up_to(limit: int) -> Callable[[str], int]:
    """A parser like ``size`` for values up to ``limit`` bytes."""

    def parse(text: str) -> int:
        total = size(text)
        if total > limit:
            raise ValueError(f"expected at most {limit} bytes")
        return total

    return parse


def milliseconds(text: str) -> int:
    """A duration of 1 ms to one day."""
    return _whole(text, 1, MILLISECONDS_MAX, "milliseconds")


def pause(text: str) -> int:
    """A pause of 1 ms to 10 s."""
    return _whole(text, 1, PAUSE_MS_MAX, "milliseconds")


def count(text: str) -> int:
    """A count of 0 to 1000."""
    return _whole(text, 0, COUNT_MAX, "tries")


def _whole(text: str, low: int, high: int, unit: str) -> int:
    word = text.strip()
    if not re.fullmatch(r"\d{1,18}", word) or not low <= int(word) <= high:
        raise ValueError(f"expected a whole number of {unit} from {low} to {high}")
    return int(word)
