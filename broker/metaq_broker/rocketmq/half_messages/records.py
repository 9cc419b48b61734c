"""Notes about half messages: the only durable state beside the messages themselves.

A note is the body of a message; its *kind* is one letter, its text the ordinals of half messages, in decimal, with
commas between. The kind is kept beside the body, as a tag.

======== ===============================================================
ended    the messages are committed or rolled back, or were given up
asked    their producers were asked once more
======== ===============================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

ENDED: Final = "d"
ASKED: Final = "c"
ORDINALS_MAX: Final = 1024
"""Ordinals in one note."""


class Note(NamedTuple):
    """A note at ``ordinal`` of its topic."""

    ordinal: int
    kind: str
    body: bytes

    @property
    def ordinals(self) -> list[int]:
        """The ordinals of its half messages; parts that are not numbers are ignored."""
        return [int(part) for part in self.body.split(b",") if part.isdigit()]


def note_body(ordinals: Sequence[int]) -> bytes:
    """Return the body of a note."""
    return b",".join(b"%d" % ordinal for ordinal in ordinals)
