"""The arithmetic of a read: from positions and lookups to the byte range of each partition. No broker is asked here.

A micro-batch ends where the brokers end, unless that is more than its byte limit allows. The limit is then shared out
in proportion to the backlogs, and each share is cut down to a frame boundary, so that no batch ends inside a message. A
partition whose share is smaller than its next message gets that one message all the same: every partition with a
backlog moves on in every batch, and the others give way. A batch is therefore above its limit only when one message
from each of those partitions is more than the limit already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from metaq.model import OffsetRange, TopicPartition
from metaq_spark.errors import OptionError
from metaq_spark.offsets import Offsets, Ranges
from metaq_spark.positions import EARLIEST_OFFSET, LATEST_OFFSET, Earliest, Latest, Position, Specific

ReportLoss = Callable[[str], None]
"""What ``data_loss.report_data_loss`` does once its policy is known: raise, or warn and return."""


class FrameBoundaries(Protocol):
    """Knows where frames begin."""

    def at_or_below(self, where: TopicPartition, offset: int, floor: int) -> int:
        """The last boundary in ``[floor, offset]``; ``floor`` is one."""

    def end_of_frame(self, where: TopicPartition, offset: int) -> int:
        """The boundary behind the frame that starts at ``offset``."""


def resolve(option: str, position: Position, held: Ranges, report_loss: ReportLoss) -> dict[TopicPartition, int]:
    """The byte offset of every partition in ``held`` at ``position``; ``option`` is where the position was given.

    Raises:
        OptionError: A specific position leaves a partition out, or names one that is not there.
    """
    match position:
        case Earliest():
            return {where: held[where].start for where in sorted(held)}
        case Latest():
            return {where: held[where].end for where in sorted(held)}
        case Specific(offsets):
            _check_named(option, offsets, held)
            return {where: _within(option, where, offsets[where], held[where], report_loss) for where in sorted(held)}


def _check_named(option: str, offsets: Offsets, held: Ranges) -> None:
    missing = sorted(where for where in held if where not in offsets)
    if missing:
        raise OptionError(
            option, f"{_names(missing)} is missing; name every partition, with -2 for earliest or -1 for latest"
        )
    # A partition that exists but was never written to holds nothing, so only "its start" or "its end" can be meant.
    strangers = sorted(where for where, offset in offsets.items() if where not in held and offset > 0)
    if strangers:
        raise OptionError(
            option, f"{_names(strangers)} holds no messages, or its topic is not subscribed; there is {_names(held)}"
        )


def _within(option: str, where: TopicPartition, offset: int, held: OffsetRange, report_loss: ReportLoss) -> int:
    if offset in (EARLIEST_OFFSET, LATEST_OFFSET):
        return held.start if offset == EARLIEST_OFFSET else held.end
    if not held.start <= offset <= held.end:
        report_loss(f"{option}: offset {offset} of {where} is outside of what the broker holds, {_span(held)}")
    return min(max(offset, held.start), held.end)


def check_boundaries(option: str, position: Position, offsets: Offsets, held: Ranges, frames: FrameBoundaries) -> None:
    """Check that offsets given by hand are where messages begin: from any other byte, nothing after it can be read.

    Raises:
        OptionError: One is inside a message.
    """
    if not isinstance(position, Specific):
        return
    for where, offset in offsets.items():
        if offset not in (held[where].start, held[where].end):
            boundary = frames.at_or_below(where, offset, held[where].start)
            if boundary != offset:
                raise OptionError(
                    option,
                    f"offset {offset} of {where} is inside a message; the message starts at {boundary}",
                )


def ranges_between(start: Offsets, end: Offsets) -> dict[TopicPartition, OffsetRange]:
    """What a batch from ``start`` to ``end`` reads: the partitions that moved, in order.

    A partition that only ``end`` knows was met in that batch; reading begins with the next one, from the offset noted.
    """
    return {
        where: OffsetRange(start[where], end[where])
        for where in sorted(end)
        if where in start and end[where] > start[where]
    }


def plan_batch(
    start: Offsets,
    held: Ranges,
    *,
    ceiling: Offsets | None,
    bytes_max: int | None,
    frames: FrameBoundaries,
    report_loss: ReportLoss,
) -> dict[TopicPartition, int]:
    """Where a micro-batch that begins at ``start`` ends, given what the brokers hold.

    ``ceiling`` (AvailableNow): the ends not to go beyond; partitions it does not name are left for another run.

    * A known partition that the lookup came without stays where it is: brokers go away and come back, and forgetting
      the position would read everything a second time.
    * A partition met for the first time is noted at its first byte, whatever ``startingOffsets`` says: what it holds
      was written after the query began. It is read from the next batch on, which keeps a batch's ranges a matter of its
      two offsets alone.
    """
    held = dict(held) if ceiling is None else _lowered(start, held, ceiling)
    ends = {where: held[where].start if where in held else start[where] for where in {*start, *held}}
    ahead = {
        where: OffsetRange(max(start[where], held[where].start), held[where].end) for where in start if where in held
    }
    ends.update({where: span.end for where, span in ahead.items()})
    for where in sorted(ahead):
        _check_held(where, start[where], held[where], report_loss)
    if bytes_max is not None:
        ends.update(limit_ends({where: span for where, span in ahead.items() if len(span)}, bytes_max, frames))
    return {where: ends[where] for where in sorted(ends)}


def _lowered(start: Offsets, held: Ranges, ceiling: Offsets) -> dict[TopicPartition, OffsetRange]:
    """``held`` as if nothing had come after ``ceiling`` was taken; never below where the query already is."""
    return {
        where: OffsetRange(span.start, min(span.end, max(ceiling[where], start.get(where, 0))))
        for where, span in held.items()
        if where in ceiling
    }


def _check_held(where: TopicPartition, start: int, held: OffsetRange, report_loss: ReportLoss) -> None:
    story = f"{where}: offset {start} was to be read next, but the broker holds {_span(held)}"
    if start < held.start:
        report_loss(f"{story}: the messages between were removed by its delete policy")
    elif start > held.end:
        report_loss(f"{story}: the topic was deleted and made again, or the broker lost its end")


def limit_ends(ahead: Ranges, bytes_max: int, frames: FrameBoundaries) -> dict[TopicPartition, int]:
    """Ends for the non-empty ranges ``ahead`` (from a boundary to a boundary) that are ``bytes_max`` together.

    Each end is a frame boundary above its start. The sum is above ``bytes_max`` only if single messages force it to be.
    """
    if sum(map(len, ahead.values())) <= bytes_max:
        return {where: span.end for where, span in ahead.items()}
    ends: dict[TopicPartition, int] = {}  # partitions that get exactly one message
    while True:
        spent = sum(end - ahead[where].start for where, end in ends.items())
        shared = {where: span for where, span in ahead.items() if where not in ends}
        cut = {
            where: frames.at_or_below(where, shared[where].start + share, shared[where].start)
            for where, share in share_out({w: len(span) for w, span in shared.items()}, bytes_max - spent).items()
        }
        stuck = [where for where, end in cut.items() if end <= shared[where].start]
        if not stuck:
            return ends | cut
        ends |= {where: frames.end_of_frame(where, shared[where].start) for where in stuck}


def share_out(backlogs: Mapping[TopicPartition, int], bytes_max: int) -> dict[TopicPartition, int]:
    """``bytes_max`` (0 if negative) divided in proportion to ``backlogs`` (all above 0), none of them exceeded."""
    total, budget = sum(backlogs.values()), max(0, bytes_max)
    return {where: min(backlog, budget * backlog // total) for where, backlog in backlogs.items()}


def _span(held: OffsetRange) -> str:
    return f"[{held.start}, {held.end})"


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(where) for where in sorted(partitions)]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") or "none"
