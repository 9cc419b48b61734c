"""Parsers of option values. Each raises ``ValueError`` with a sentence about what is allowed.

Parsers with limits or words are values, from which tests derive accepted and refused examples.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from metaq import ports
from metaq.formats.message_types import TYPE_CHARS_MAX, is_message_type
from metaq.model import BROKER_ID_MAX, INT64_MAX, Address, Partition
from metaq.sizes import parse_size

TASK_COUNT_MAX: Final = 100_000

_MILLISECONDS_MAX: Final = 24 * 3600 * 1000
_DURATION_MS_MAX: Final = 366 * _MILLISECONDS_MAX
_BROKER_COUNT: Final = re.compile(r"(\d{1,4})\s*:\s*(\d{1,6})")
_DURATION: Final = re.compile(r"(\d{1,15})\s*(ms|s|m|h|d|)")
_DURATION_UNITS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": _MILLISECONDS_MAX}
_TIMESTAMP_SYNTAX: Final = "milliseconds since 1970, or ISO 8601 with a time zone, such as 2026-11-20T06:30:00Z"


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of ``unit``, ``low`` to ``high``."""

    unit: str
    low: int
    high: int

    def __call__(self, text: str) -> int:
        word = text.strip()
        if not re.fullmatch(r"\d{1,19}", word) or not self.low <= int(word) <= self.high:
            raise ValueError(f"expected a whole number of {self.unit} from {self.low} to {self.high}")
        return int(word)


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes, 1 to ``most``: a number, alone or with a unit after it, as ``parse_size`` reads it."""

    most: int

    def __call__(self, text: str) -> int:
        try:
            total = parse_size(text)
        except ValueError:
            total = 0
        if not 1 <= total <= INT64_MAX:
            raise ValueError("expected a number of bytes of at least 1, such as 65536, 512k, 64m or 1g")
        if total > self.most:
            raise ValueError(f"expected at most {self.most} bytes")
        return total


class OneOf:
    """One of a few words, in any case; returned in lower case."""

    def __init__(self, *words: str) -> None:
        self.words: Final = words

    def __call__(self, text: str) -> str:
        word = text.strip().lower()
        if word not in self.words:
            raise ValueError(f"expected {', '.join(self.words[:-1])} or {self.words[-1]}")
        return word


def field_name(text: str) -> str:
    """The name of a field, as it is.

    Raises:
        ValueError: It is empty.
    """
    if not text.strip():
        raise ValueError("expected the name of a field of valueSchema")
    return text.strip()


@dataclass(frozen=True, slots=True)
class Name:
    """A name of ``what``; ``accepts`` is true for valid names, ``allowed`` describes them, for messages."""

    accepts: Callable[[str], object]
    allowed: str
    what: str = "topic"

    def of(self, what: str) -> Name:
        """The same for the name of something else."""
        return replace(self, what=what)

    def __call__(self, text: str) -> str:
        if not self.accepts(text.strip()):
            raise ValueError(f"expected the name of a {self.what}{self.allowed}")
        return text.strip()


size: Final = Size(INT64_MAX)
milliseconds: Final = Whole("milliseconds", 1, _MILLISECONDS_MAX)
pause: Final = Whole("milliseconds", 1, 10_000)
count: Final = Whole("tries", 0, 1000)
messages: Final = Whole("messages", 1, INT64_MAX)
task_count: Final = Whole("tasks", 1, TASK_COUNT_MAX)
version: Final = Whole("versions", 0, INT64_MAX)


def listed(text: str, what: str) -> tuple[str, ...]:
    """Return the parts of ``text`` between commas, in order, without blank and repeated ones; at least one."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ValueError(f"expected {what}, separated by commas")
    return found


def addresses(text: str) -> tuple[Address, ...]:
    """Parse ``host:port`` separated by commas, in order, without duplicates."""
    if not text.strip(" ,"):
        raise ValueError(f"expected host:port, separated by commas, for example {ports.METAQ_HERE}")
    return tuple(dict.fromkeys(map(Address.parse, listed(text, "host:port"))))


def names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas, in order, without duplicates."""
    return listed(text, "names")


def path(text: str) -> str:
    if not text.strip():
        raise ValueError("expected the path of a file")
    return text.strip()


def boolean(text: str) -> bool:
    """``true`` or ``false``, in any case."""
    return OneOf("true", "false")(text) == "true"


def span(raw: str) -> tuple[int, int]:
    """Two numbers of batches, the first one not above the second."""
    first, dash, last = raw.partition("-")
    found = version(first), version(last if dash else first)
    if found[0] > found[1]:
        raise ValueError(f"batch {found[0]} to {found[1]}: expected FIRST-LAST with FIRST not above LAST")
    return found


def broker_ids(raw: str) -> frozenset[int]:
    """Ids of MetaQ brokers, separated by commas."""
    words = [word.strip() for word in raw.split(",")]
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise ValueError("expected broker ids, separated by commas, such as 0,7")
    return frozenset(map(int, words))


def pattern(raw: str) -> re.Pattern[str]:
    """A regular expression of Python's."""
    if not raw.strip():
        raise ValueError("expected some text")
    try:
        return re.compile(raw.strip())
    except re.error as error:
        raise ValueError(f"not a regular expression ({error})") from None


def message_types(raw: str) -> tuple[str, ...]:
    """Message types separated by commas, doubles dropped."""
    found = tuple(dict.fromkeys(part.strip() for part in raw.split(",") if part.strip()))
    if not found or not all(map(is_message_type, found)):
        allowed = f"each of up to {TYPE_CHARS_MAX} letters, digits and underscores"
        raise ValueError(f"expected message types separated by commas, {allowed}")
    return found


def transaction_name(raw: str) -> str:
    """A name for a series of writes, as a broker keeps it."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", raw.strip()):
        raise ValueError("expected up to 200 letters, digits and any of . _ -")
    return raw.strip()


def duration_ms(raw: str) -> int:
    """Milliseconds, up to 366 days: a number, alone or with ms, s, m, h or d after it."""
    match = _DURATION.fullmatch(raw.strip().lower())
    total = int(match[1]) * _DURATION_UNITS[match[2]] if match else 0
    if not 1 <= total <= _DURATION_MS_MAX:
        raise ValueError("expected a duration from 1 ms to 366 days, such as 500, 500ms, 30s, 15m, 12h or 1d")
    return total


def wait_ms(raw: str) -> int:
    """Parse a duration as ``duration_ms`` does, or 0 for no wait."""
    return 0 if raw.strip() == "0" else duration_ms(raw)


def timestamp_ms(raw: str) -> int:
    """Milliseconds since 1970: a number, or a date and time in ISO 8601 with ``Z`` or an offset."""
    word = raw.strip()
    if re.fullmatch(r"\d{1,15}", word):
        return int(word)
    try:
        moment = datetime.datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(f"expected {_TIMESTAMP_SYNTAX}") from None
    if moment.tzinfo is None:
        raise ValueError(f"it does not say in which time zone it is; expected {_TIMESTAMP_SYNTAX}")
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    if since < datetime.timedelta(0):
        raise ValueError("it is before 1970")
    return since // datetime.timedelta(milliseconds=1)


def ordered_partitions(raw: str) -> tuple[Partition, ...]:
    """Parse ``BROKER_ID:COUNT;...``; return the partitions broker by broker, in order."""
    found: list[Partition] = []
    for part in filter(None, (part.strip() for part in raw.split(";"))):
        match = _BROKER_COUNT.fullmatch(part)
        if match is None or int(match[1]) > BROKER_ID_MAX or not 1 <= int(match[2]) <= TASK_COUNT_MAX:
            raise ValueError("expected BROKER_ID:COUNT separated by semicolons, for example 0:4;1:4")
        found += [Partition(int(match[1]), index) for index in range(int(match[2]))]
    if not found or len(set(found)) < len(found):
        raise ValueError("expected each broker once, as BROKER_ID:COUNT separated by semicolons, for example 0:4;1:4")
    return tuple(found)
