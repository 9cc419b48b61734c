"""The format of input lines of ``metaq produce``: key, attribute and value, as the user specifies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from metaq.cli.message_form import ESCAPES, TOKEN

NO_PROPERTIES: Final[Mapping[str, str]] = {}
_FIELDS: Final = "kav"


class Line(NamedTuple):
    """A message to send. The key decides on the partition, unless that is named; RocketMQ also stores the key."""

    value: bytes
    key: bytes | None
    attribute: str | None
    properties: Mapping[str, str] = NO_PROPERTIES
    partition: str | None = None

    def words_of_key(self) -> tuple[str, ...]:
        """Return the key as RocketMQ has it, words without blanks.

        Raises:
            ValueError: It is not UTF-8.
        """
        if self.key is None:
            return ()
        try:
            return tuple(self.key.decode().split())
        except UnicodeDecodeError:
            raise ValueError(f"key {self.key[:80]!r} is not UTF-8, which RocketMQ's keys must be") from None


def line_parser(text: str, attribute: str | None) -> Callable[[bytes, int], Line]:
    """Return a parser of a line and its number, for the format ``text``; ``attribute`` is for lines without one.

    Raises:
        ValueError: The format is not valid. The parser raises it for a line that does not match.
    """
    pattern = re.compile(_pattern(text), re.DOTALL)

    def parse(line: bytes, number: int) -> Line:
        match = pattern.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number}: it is not of the form {text!r}")
        fields = match.groupdict()
        found = attribute
        if (raw := fields.get("a")) is not None:
            try:
                found = raw.decode()
            except UnicodeDecodeError:
                raise ValueError(f"line {number}: the attribute {raw[:80]!r} is not UTF-8") from None
        return Line(fields["v"], fields.get("k"), found)

    return parse


def _pattern(text: str) -> bytes:
    """The format as a regular expression. A field ends where the text after it begins for the first time."""
    parts: list[bytes] = []
    seen = ""
    for match in TOKEN.finditer(text):
        percent, escape, plain = match.groups()
        if plain is not None or percent == "%":
            parts.append(re.escape((plain or "%").encode()))
        elif escape is not None and escape in ESCAPES and escape != "n":
            parts.append(re.escape(ESCAPES[escape]))
        elif percent and percent in _FIELDS and percent not in seen:
            if parts and parts[-1].startswith(b"(?P<"):
                raise ValueError(f"--format {text}: expected text between %{seen[-1]} and %{percent}")
            seen += percent
            parts.append(b"(?P<%s>.*?)" % percent.encode())
        else:
            raise ValueError(rf"--format {text}: {match[0]!r}; expected %k, %a and %v, each once, %%, \t, \0 and \\")
    if "v" not in seen:
        raise ValueError(f"--format {text}: expected %v in it, the value")
    return b"".join(parts)
