"""Questions about positions: frame boundaries, ordinals, times. A search in the index, then a short walk."""

from __future__ import annotations

from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from metaq.formats.message_id import timestamp_ms
from metaq.model import INT64_MAX
from metaq_broker.storage.layout import Layout
from metaq_broker.storage.segment import Segment

_OFFSET: Final = attrgetter("offset")
_ORDINAL: Final = attrgetter("ordinal")
_TIME_MS: Final = attrgetter("time_ms")


class Boundary(NamedTuple):
    """A frame boundary and the number of messages before it."""

    offset: int
    ordinal: int


def boundary_at_or_below(layout: Layout, offset: int) -> Boundary:
    """Return the last frame boundary at or below ``offset``, a kept one; in damage: where that begins."""
    segment = layout.find(offset)
    entry = segment.index.last_at_most(layout.handles, _OFFSET, offset, segment.start, segment.end)
    boundary = (
        Boundary(segment.start, segment.first_ordinal) if entry is None else Boundary(entry.offset, entry.ordinal)
    )
    boundary = _pass_intact(layout, segment, boundary, offset, INT64_MAX)
    for step in layout.walk(segment, boundary.offset, offset):
        if step.end > offset:
            break
        boundary = Boundary(step.end, boundary.ordinal + step.messages)
    return boundary


def boundary_of_message(layout: Layout, ordinal: int) -> Boundary:
    """Return where the message with ``ordinal`` others before it begins, or the damage that it lies in.

    Below the first kept message: its place.
    """
    segment = layout.segment_of_message(ordinal)
    first = segment.first_ordinal
    end = first + segment.messages if segment.messages else None
    entry = segment.index.last_at_most(layout.handles, _ORDINAL, ordinal, first, end)
    boundary = (
        Boundary(segment.start, segment.first_ordinal) if entry is None else Boundary(entry.offset, entry.ordinal)
    )
    boundary = _pass_intact(layout, segment, boundary, segment.end, ordinal)
    for step in layout.walk(segment, boundary.offset, segment.end):
        if boundary.ordinal + step.messages > ordinal:
            break
        boundary = Boundary(step.end, boundary.ordinal + step.messages)
    return boundary


def _pass_intact(layout: Layout, segment: Segment, boundary: Boundary, limit: int, ordinal_max: int) -> Boundary:
    """Return the last place that can be reached over intact messages only, at most at ``limit`` or ``ordinal_max``."""
    passed = -1
    while passed and boundary.offset < limit and boundary.ordinal < ordinal_max:
        offset, passed = layout.pass_intact(segment, boundary.offset, limit, ordinal_max - boundary.ordinal)
        boundary = Boundary(offset, boundary.ordinal + passed)
    return boundary


def first_at(layout: Layout, time_ms: int, readable_end: int) -> int:
    """Return the offset of the first message at or after ``time_ms``; ``readable_end`` if there is none before it.

    Exact where message ids tell the time. A message whose id does not may be earlier, by at most what the index knows.
    """
    first = _segment_before(layout, time_ms)
    behind = next(islice(layout.following(first), 1, None), None)
    end_ms = None if behind is None else behind.first_ms
    entry = first.index.last_at_most(layout.handles, _TIME_MS, time_ms - 1, first.first_ms, end_ms)
    offset = first.start if entry is None else entry.offset
    for segment in layout.following(first):
        for step in layout.walk(segment, max(offset, segment.start), readable_end):
            if step.message_id is not None:
                known_ms = timestamp_ms(step.message_id)
                if known_ms is None or known_ms >= time_ms:
                    return min(step.offset, readable_end)
    return readable_end


def _segment_before(layout: Layout, time_ms: int) -> Segment:
    """Return the last segment before which every message is earlier than ``time_ms``."""
    found = layout.segments[0]
    for segment in layout.segments:
        if segment.first_ms >= time_ms:
            break
        found = segment
    return found
