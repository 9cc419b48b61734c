"""Tags: the hash by which a broker filters, and tag expressions.

A broker compares hashes only, so a different tag with the same hash passes: a client compares the texts again.

Expressions are split as by RocketMQ 4.9.7: blanks around a tag are those of Java's ``trim``, empty parts are ignored,
and a single bar, or ``*`` among others, is a tag or part of one. Unlike there, ``*`` may have blanks around it, blanks
alone match every message, and bars with nothing but blanks between are an error.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

EXPECTED: Final = "expected *, or tags with || between, for example red || blue"
"""What an expression is, for messages."""

_ALL: Final = "*"
_BARS: Final = "||"
_BLANKS: Final = bytes(range(0x21)).decode()


def tag_hash(tag: str) -> int:
    """Return the hash of a tag, a signed number of 32 bits: Java's ``String.hashCode``."""
    value = 0
    if tag.isascii():
        for unit in tag.encode():
            value = value * 31 + unit & 0xFFFFFFFF
    else:
        units = tag.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            value = value * 31 + (high << 8 | low) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@dataclass(frozen=True)
class TagFilter:
    """Which messages an expression such as ``a || b`` matches; ``expression`` is as brokers get it.

    ``names``: the tags that it names, ``None`` = every message matches, even without a tag.
    """

    expression: str = _ALL
    names: frozenset[str] | None = None

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter:
        """Return the filter of an expression; ``None`` is that for all messages.

        Raises:
            ValueError: The expression has bars and no tag.
        """
        text = (expression or "").strip(_BLANKS)
        if text in ("", _ALL):
            return cls()
        names = frozenset(name for part in text.split(_BARS) if (name := part.strip(_BLANKS)))
        if not names:
            raise ValueError(f"tags {expression!r}: {EXPECTED}")
        return cls(text, names)

    @staticmethod
    def is_tag(text: str) -> bool:
        """Return whether an expression can name this tag."""
        return text == text.strip(_BLANKS) and _BARS not in text and text not in ("", _ALL)

    @staticmethod
    def either(tags: Iterable[str]) -> str:
        """Return the expression that names these tags, each of which ``is_tag``."""
        return f" {_BARS} ".join(tags)

    @property
    def is_all(self) -> bool:
        """Whether every message matches."""
        return self.names is None

    @property
    def hashes(self) -> tuple[int, ...] | None:
        """The hashes that brokers compare, in the order of the sorted names; ``None``: they send every message."""
        return None if self.names is None else tuple(map(tag_hash, sorted(self.names)))

    @cached_property
    def encoded(self) -> Container[bytes] | None:
        """The matching tags in UTF-8; ``None`` = every message matches."""
        return None if self.names is None else frozenset(name.encode("utf-8", "replace") for name in self.names)

    def matches(self, tag: str | bytes | None) -> bool:
        """Return whether a message with this tag matches; ``None`` or empty: it has none."""
        names = self.encoded if isinstance(tag, bytes) else self.names
        return names is None or tag in names


ALL_TAGS: Final = TagFilter()
