"""The maximum size of a micro-batch, and the minimum that it waits for. Asks brokers only through ``positions``.

A limit is divided in proportion to the partitions' backlogs, and each share is rounded to a message boundary, so that
no batch ends inside a message. A partition whose share is smaller than its next message still gets that message: every
partition with a backlog progresses in every batch, at the expense of the others. A batch therefore exceeds a limit only
if one message from each of these partitions exceeds it. If offsets count messages, bytes are estimated by a mean size.

``minOffsetsPerTrigger`` with ``maxTriggerDelay`` delays a micro-batch until there are enough messages. As in Spark's
Kafka source, the first micro-batch of a run is not delayed, and no batch waits longer than the delay since the previous
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metaq.model import OffsetRange, TopicPartition
from metaq.net.clock import Clock
from metaq_spark.offsets import Ranges
from metaq_spark.source.backend import Boundaries, Cuts, MessageCounts, Positions, SkipAhead


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits on the bytes and messages of a micro-batch; ``None`` = any number. If both are given, both apply."""

    bytes_max: int | None = None
    messages_max: int | None = None


def limited(ahead: Ranges, limits: BatchLimits, positions: Positions) -> dict[TopicPartition, int]:
    """Where each of the ranges ``ahead`` (from a boundary to a boundary) ends under ``limits``."""
    left = {where: span for where, span in ahead.items() if len(span)}
    if limits.messages_max is not None:
        ends = limit_messages(left, limits.messages_max, positions)
        left = {where: OffsetRange(span.start, ends[where]) for where, span in left.items()}
    if limits.bytes_max is not None:
        ends = limit_bytes(left, limits.bytes_max, positions)
        left = {where: OffsetRange(span.start, ends[where]) for where, span in left.items()}
    return {where: left[where].end if where in left else span.end for where, span in ahead.items()}


def limit_bytes(ahead: Ranges, bytes_max: int, positions: Boundaries) -> dict[TopicPartition, int]:
    """Return ends for the non-empty ranges ``ahead`` with ``bytes_max`` in total.

    Each end is a boundary above its start. The total exceeds ``bytes_max`` only because of single messages.
    """
    scales = positions.bytes_per_offset(ahead)
    sizes = {where: max(1, int(len(span) * scales[where])) for where, span in ahead.items()}
    if sum(sizes.values()) <= bytes_max:
        return {where: span.end for where, span in ahead.items()}
    ends: dict[TopicPartition, int] = {}  # partitions that get exactly one message
    while True:
        spent = sum(int((end - ahead[where].start) * scales[where]) for where, end in ends.items())
        shared = {where: span for where, span in ahead.items() if where not in ends}
        shares = share_out({where: sizes[where] for where in shared}, bytes_max - spent)
        cut = _brought_down(shared, {where: int(share // scales[where]) for where, share in shares.items()}, positions)
        stuck = [(where, shared[where].start) for where, end in cut.items() if end <= shared[where].start]
        if not stuck:
            return ends | cut
        ends |= {where: min(end, ahead[where].end) for (where, _), end in positions.message_ends(stuck).items()}


def _brought_down(
    spans: Ranges, lengths: Mapping[TopicPartition, int], positions: Boundaries
) -> dict[TopicPartition, int]:
    asked = {where: Cuts(span.start, [span.start + lengths[where]]) for where, span in spans.items() if lengths[where]}
    found = positions.boundaries(asked)
    # Where retention has just overtaken the range, the answer is the log's start, which may be after the end planned.
    return {where: min(found[where][0], span.end) if where in found else span.start for where, span in spans.items()}


def limit_messages(ahead: Ranges, messages_max: int, counts: MessageCounts) -> dict[TopicPartition, int]:
    """Return ends for the non-empty ranges ``ahead`` with ``messages_max`` messages in total.

    Unused shares go to the other partitions. Each end is a boundary above its start; there are more than
    ``messages_max`` messages only if there are more partitions than that.
    """
    if sum(map(len, ahead.values())) <= messages_max * counts.offsets_per_message_min:  # no need to ask
        return {where: span.end for where, span in ahead.items()}
    ends = {where: span.start for where, span in ahead.items()}
    shares = _at_least_one(_lengths(ahead), messages_max)
    budget = messages_max
    while any(shares.values()):
        asked = {
            where: SkipAhead(OffsetRange(ends[where], ahead[where].end), share)
            for where, share in shares.items()
            if share
        }
        for where, skipped in counts.skip(asked).items():
            ends[where] = skipped.offset
            budget -= skipped.messages
        unfinished = {where: span.end - ends[where] for where, span in ahead.items() if ends[where] < span.end}
        shares = share_out(unfinished, budget)
    return ends


def _at_least_one(backlogs: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Shares of ``limit`` in proportion to ``backlogs``, each at least 1; the others are reduced for it."""
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


@dataclass(slots=True)
class TriggerDelay:
    """Remembers when the last micro-batch went, and how many messages were counted so far for the next one."""

    clock: Clock
    delay_s_max: float
    _last_s: float | None = None
    _counted: dict[TopicPartition, tuple[OffsetRange, int]] = field(default_factory=dict)

    def should_wait(self, ahead: Ranges, messages_min: int | None, counts: MessageCounts) -> bool:
        """Whether a micro-batch of ``ahead`` should wait; if not, it counts as started."""
        if not any(map(len, ahead.values())):
            return False
        now_s = self.clock.monotonic()
        waited = self._last_s is None or now_s - self._last_s >= self.delay_s_max
        if messages_min is not None and not waited and not self._enough(ahead, messages_min, counts):
            return True
        self._last_s = now_s
        self._counted.clear()
        return False

    def _enough(self, ahead: Ranges, messages_min: int, counts: MessageCounts) -> bool:
        if sum(map(len, ahead.values())) < messages_min * counts.offsets_per_message_min:  # no need to ask
            return False
        uncounted = {where: self._after_counted(where, span) for where, span in ahead.items()}
        asked = {where: SkipAhead(span, messages_min) for where, span in uncounted.items() if len(span)}
        for where, skipped in (counts.skip(asked) if asked else {}).items():
            before = self._counted[where][1] if uncounted[where].start > ahead[where].start else 0
            self._counted[where] = (OffsetRange(ahead[where].start, skipped.offset), before + skipped.messages)
        return sum(count for where, (_, count) in self._counted.items() if where in ahead) >= messages_min

    def _after_counted(self, where: TopicPartition, span: OffsetRange) -> OffsetRange:
        known, _ = self._counted.get(where, (None, 0))
        if known is None or known.start != span.start or known.end > span.end:  # the end was lost: count again
            self._counted.pop(where, None)
            return span
        return OffsetRange(known.end, span.end)
