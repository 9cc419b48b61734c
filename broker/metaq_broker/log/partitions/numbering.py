"""Determines how many messages are before the oldest kept one if the index of its segment does not say it.

The ordinals of a partition count from its first message, which retention may have removed. The first entry of the
oldest index has the number; it is synced before retention removes the segment before it (``FirstEntryJob``). If that
index is lost nevertheless, another position with a known number (``durable-ends``, a lost end) gives it.

If no position has a known number, the oldest message gets a number above all earlier ones: a message has at least
``HEADER_BYTES``, so there were at most the log's end divided by that. Committed queue offsets, and positions of delayed
and half messages, are then below the queue's first one and are reset to it: messages may be delivered again, and none
is skipped.

Source: docs/log-format.md, "What is damage, and what is torn".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from metaq.formats.frames import HEADER_BYTES
from metaq_broker.log.files.durable_ends import KnownEnd
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.layout import Layout
from metaq_broker.log.partitions.reads import boundary_at_or_below
from metaq_broker.log.segments.index import IndexEntry, make_first_durable


def messages_before(layout: Layout, end: int, known: Iterable[KnownEnd]) -> int | None:
    """Return how many messages are before a log that is counted from 0; ``None`` if no known end says it.

    If known ends disagree, because the number of messages in damage is unknown, the largest number is used, so that no
    number is given twice.

    Raises:
        OSError: A segment cannot be read.
    """
    found = []
    for each in known:
        if each.ordinal is not None and layout.start <= each.end <= end:
            here = boundary_at_or_below(layout, each.end)
            if here.offset == each.end and here.ordinal <= each.ordinal:
                found.append(each.ordinal - here.ordinal)
    return max(found, default=None)


def above_all(end: int) -> int:
    """Return a number that no message of a log that ends at ``end`` ever had."""
    return end // HEADER_BYTES


@dataclass(frozen=True, slots=True)
class FirstEntryJob:
    """Makes the first entry of an index durable, which says how many messages are before its segment."""

    files: Files
    path: Path
    entry: IndexEntry
    interval_bytes: int

    def run(self) -> None:
        """Do it (blocking; any thread).

        Raises:
            OSError: The disk refuses.
        """
        make_first_durable(self.files, self.path, self.entry, self.interval_bytes)
