"""How the text of an option is read. Each parser raises ``ValueError`` with a sentence that says what is allowed."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Final

from metaq.formats.message_types import TYPE_CHARS_MAX, is_message_type
from metaq.model import BROKER_ID_MAX, INT64_MAX, Address, Partition
from metaq.sizes import parse_size

MILLISECONDS_MAX: Final = 24 * 3600 * 1000
PAUSE_MS_MAX: Final = 10_000
COUNT_MAX: Final = 1000
TASK_COUNT_MAX: Final = 100_000
DURATION_MS_MAX: Final = 366 * MILLISECONDS_MAX

_TOPIC: Final = re.compile(r"[^\s,/@*]+")
_TRANSACTION_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_BROKER_COUNT: Final = re.compile(r"(\d{1,4})\s*:\s*(\d{1,6})")
_DURATION: Final = re.compile(r"(\d{1,15})\s*(ms|s|m|h|d|)")
_DURATION_UNITS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": MILLISECONDS_MAX}
_TIMESTAMP_SYNTAX: Final = "milliseconds since 1970, or ISO 8601 with a time zone, such as 2026-11-20T06:30:00Z"


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


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas, in the order given, doubles dropped."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise ValueError("expected names, separated by commas")
    return tuple(dict.fromkeys(found))


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
    """Bytes, at least 1: a number, alone or with a unit behind it, as ``parse_size`` reads it."""
    try:
        total = parse_size(text)
    except ValueError:
        total = 0
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


def one_of(*words: str) -> Callable[[str], str]:
    """A parser for one of a few words, in any case; gives it in lower case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"expected {', '.join(words[:-1])} or {words[-1]}")
        return word

    return parse


def text(raw: str) -> str:
    """Any text that is not blank."""
    if not raw.strip():
        raise ValueError("expected some text")
    return raw.strip()


def messages(raw: str) -> int:
    """A number of messages, 1 to 2**63 - 1."""
    return _whole(raw, 1, INT64_MAX, "messages")


def task_count(raw: str) -> int:
    """A number of tasks, 1 to ``TASK_COUNT_MAX``."""
    return _whole(raw, 1, TASK_COUNT_MAX, "tasks")


def version(raw: str) -> int:
    """A version, 0 to 2**63 - 1."""
    return _whole(raw, 0, INT64_MAX, "versions")


def span(raw: str) -> tuple[int, int]:
    """Two numbers of batches, the first one not above the second."""
    first, dash, last = raw.partition("-")
    found = version(first), version(last if dash else first)
    if found[0] > found[1]:
        raise ValueError("the first batch is behind the last one; allowed is FIRST-LAST")
    return found


def pattern(raw: str) -> re.Pattern[str]:
    """A regular expression of Python's."""
    try:
        return re.compile(text(raw))
    except re.error as error:
        raise ValueError(f"not a regular expression ({error})") from None


def message_types(raw: str) -> tuple[str, ...]:
    """Message types separated by commas, doubles dropped."""
    found = tuple(dict.fromkeys(part.strip() for part in raw.split(",") if part.strip()))
    if not found or not all(map(is_message_type, found)):
        allowed = f"each of up to {TYPE_CHARS_MAX} letters, digits and underscores"
        raise ValueError(f"expected message types separated by commas, {allowed}")
    return found


def group(raw: str) -> str:
    """The name of a consumer group."""
    if not _TOPIC.fullmatch(raw.strip()):
        raise ValueError("expected the name of a group without spaces and without any of , / @ *")
    return raw.strip()


def transaction_name(raw: str) -> str:
    """A name for a series of writes, as a broker keeps it."""
    if not _TRANSACTION_NAME.fullmatch(raw.strip()):
        raise ValueError("expected up to 200 letters, digits and any of . _ -")
    return raw.strip()


def duration_ms(raw: str) -> int:
    """Milliseconds, 1 to ``DURATION_MS_MAX``: a number, alone or with ms, s, m, h or d behind it."""
    match = _DURATION.fullmatch(raw.strip().lower())
    total = int(match[1]) * _DURATION_UNITS[match[2]] if match else 0
    if not 1 <= total <= DURATION_MS_MAX:
        raise ValueError("expected a duration from 1 ms to 366 days, such as 500, 500ms, 30s, 15m, 12h or 1d")
    return total


def wait_ms(raw: str) -> int:
    """As ``duration_ms``; 0 = no wait."""
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
    """``BROKER_ID:COUNT;...``: the partitions of each broker in turn, in the order given."""
    found: list[Partition] = []
    for part in filter(None, (part.strip() for part in raw.split(";"))):
        match = _BROKER_COUNT.fullmatch(part)
        if match is None or int(match[1]) > BROKER_ID_MAX or not 1 <= int(match[2]) <= TASK_COUNT_MAX:
            raise ValueError("expected BROKER_ID:COUNT separated by semicolons, for example 0:4;1:4")
        found += [Partition(int(match[1]), index) for index in range(int(match[2]))]
    if not found or len(set(found)) < len(found):
        raise ValueError("expected each broker once, as BROKER_ID:COUNT separated by semicolons, for example 0:4;1:4")
    return tuple(found)
