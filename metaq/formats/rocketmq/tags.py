"""Tags: the hash by which a broker filters, and tag expressions.

A broker compares hashes only, so a different tag with the same hash passes: a client compares the texts again.
"""

from __future__ import annotations

from typing import Final

ALL: Final = "*"
"""The expression that matches every message, even without a tag."""


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


def tags_of(expression: str | None) -> tuple[str, ...]:
    """Return the distinct tags of an expression such as ``a || b``; empty if every message matches.

    Raises:
        ValueError: The expression has bars and no tag.
    """
    if expression is None or expression.strip() in ("", ALL):
        return ()
    tags = tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))
    if not tags:
        raise ValueError(f"tags {expression!r} has no tag; expected '*', a tag, or several with '||' between")
    return tags
