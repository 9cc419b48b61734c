"""Finds the message with a given ordinal, quickly for readers that continue where they stopped.

The index answers for any ordinal, with a search and a short walk. The ends of recent reads are remembered, a few for
each partition (``Layout.places``), so that a reader that continues needs neither.
"""

from __future__ import annotations

from typing import Final

from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.reads import Boundary, boundary_at_or_below, boundary_of_message

PLACES_MAX: Final = 64
"""Remembered ends of one partition; the oldest is forgotten first."""


def first_ordinal(log: PartitionLog) -> int:
    """Return the ordinal of the oldest kept message."""
    return log.layout.segments[0].first_ordinal


def boundary_at(log: PartitionLog, offset: int) -> Boundary:
    """Return the frame boundary at or below ``offset`` with its ordinal, clamped to what is kept and readable."""
    return boundary_at_or_below(log.layout, min(max(offset, log.start_offset), log.readable_end))


def time_before(log: PartitionLog, offset: int) -> int:
    """Return a time in ms after which the messages of the segment at ``offset`` were stored; 0 = unknown.

    It replaces the store time of messages whose ids have none.
    """
    return log.layout.find(offset).first_ms


def message_at(log: PartitionLog, ordinal: int) -> Boundary:
    """Return the start of the message with ``ordinal`` messages before it; clamped to the kept, readable range.

    If the message is damaged, this is the start of the damage, and its ordinal may be lower.

    Raises:
        OSError: The index or the segment cannot be read.
    """
    if ordinal >= log.durable_ordinal:
        return Boundary(log.readable_end, log.durable_ordinal)
    offset = log.layout.places.get(ordinal)
    if offset is not None and log.start_offset <= offset < log.readable_end:
        return Boundary(offset, ordinal)
    return boundary_of_message(log.layout, ordinal)


def remember(log: PartitionLog, ordinal: int, offset: int) -> None:
    """Remember the start of the message with ``ordinal`` messages before it."""
    places = log.layout.places
    if len(places) >= PLACES_MAX and ordinal not in places:
        del places[next(iter(places))]
    places[ordinal] = offset
