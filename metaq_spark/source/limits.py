"""How much a micro-batch may hold, shared out over the partitions. No broker is asked here but through ``frames``.

A limit is shared out in proportion to the backlogs in bytes, and each share is brought to a frame boundary, so that no
batch ends inside a message. A partition whose share is smaller than its next message gets that one message all the
same: every partition with a backlog moves on in every batch, and the others give way. A batch is therefore above a
limit only when one message from each of those partitions is more than the limit already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metaq.model import OffsetRange, TopicPartition
from metaq_spark.offsets import Ranges
from metaq_spark.source.frames import Cuts, FrameBoundaries, Frames, MessageCounts, Skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Most bytes and most messages of a micro-batch; ``None`` = any number. If both are given, both hold."""

    bytes_max: int | None = None
    messages_max: int | None = None


def limited(ahead: Ranges, limits: Limits, frames: Frames) -> dict[TopicPartition, int]:
    """Where each of the ranges ``ahead`` (from a boundary to a boundary) ends under ``limits``."""
    left = {where: span for where, span in ahead.items() if len(span)}
    if limits.messages_max is not None:
        ends = limit_messages(left, limits.messages_max, frames)
        left = {where: OffsetRange(span.start, ends[where]) for where, span in left.items()}
    if limits.bytes_max is not None:
        ends = limit_bytes(left, limits.bytes_max, frames)
        left = {where: OffsetRange(span.start, ends[where]) for where, span in left.items()}
    return {where: left[where].end if where in left else span.end for where, span in ahead.items()}


def limit_bytes(ahead: Ranges, bytes_max: int, frames: FrameBoundaries) -> dict[TopicPartition, int]:
    """Ends for the non-empty ranges ``ahead`` that are ``bytes_max`` together.

    Each end is a frame boundary above its start. The sum is above ``bytes_max`` only if single messages force it to be.
    """
    if sum(map(len, ahead.values())) <= bytes_max:
        return {where: span.end for where, span in ahead.items()}
    ends: dict[TopicPartition, int] = {}  # partitions that get exactly one message
    while True:
        spent = sum(end - ahead[where].start for where, end in ends.items())
        shared = {where: span for where, span in ahead.items() if where not in ends}
        cut = _brought_down(shared, share_out(_lengths(shared), bytes_max - spent), frames)
        stuck = [(where, shared[where].start) for where, end in cut.items() if end <= shared[where].start]
        if not stuck:
            return ends | cut
        ends |= {where: min(end, ahead[where].end) for (where, _), end in frames.frame_ends(stuck).items()}


def _brought_down(
    spans: Ranges, shares: Mapping[TopicPartition, int], frames: FrameBoundaries
) -> dict[TopicPartition, int]:
    asked = {where: Cuts(span.start, [span.start + shares[where]]) for where, span in spans.items() if shares[where]}
    found = frames.boundaries(asked)
    # Where retention has just overtaken the range, the answer is the log's start, which may be behind the end planned.
    return {where: min(found[where][0], span.end) if where in found else span.start for where, span in spans.items()}


def limit_messages(ahead: Ranges, messages_max: int, counts: MessageCounts) -> dict[TopicPartition, int]:
    """Ends for the non-empty ranges ``ahead`` that hold ``messages_max`` messages together.

    What a partition of few large messages leaves of its share goes to the others. Each end is a frame boundary above
    its start; there are more than ``messages_max`` messages only if there are more partitions than that.
    """
    ends = {where: span.start for where, span in ahead.items()}
    shares = _at_least_one(_lengths(ahead), messages_max)
    budget = messages_max
    while any(shares.values()):
        asked = {
            where: Skip(OffsetRange(ends[where], ahead[where].end), share) for where, share in shares.items() if share
        }
        for where, skipped in counts.skip(asked).items():
            ends[where] = skipped.offset
            budget -= skipped.messages
        hungry = {where: span.end - ends[where] for where, span in ahead.items() if ends[where] < span.end}
        shares = share_out(hungry, budget)
    return ends


def _at_least_one(backlogs: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Shares of ``limit`` in proportion to ``backlogs``, but nobody's is 0; the others give way."""
    shares: dict[TopicPartition, int] = {}
    while True:
        shared = {where: backlog for where, backlog in backlogs.items() if where not in shares}
        found = share_out(shared, limit - len(shares))
        small = [where for where, share in found.items() if share < 1]
        if not small:
            return shares | found
        shares |= dict.fromkeys(small, 1)


def share_out(backlogs: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """``limit`` (0 if negative) divided in proportion to ``backlogs`` (all above 0), none of them exceeded."""
    total, budget = sum(backlogs.values()), max(0, limit)
    return {where: min(backlog, budget * backlog // total) for where, backlog in backlogs.items()}


def _lengths(spans: Ranges) -> dict[TopicPartition, int]:
    return {where: len(span) for where, span in spans.items()}
