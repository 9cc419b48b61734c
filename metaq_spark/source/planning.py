"""Plans the end of a micro-batch from the query's progress and the brokers' ranges.

Asks brokers only through ``positions``. Each partition is in one of these cases:

===========================================  =====================================================================
not listed by the brokers                    stays where it is: brokers go away and come back, and forgetting the
                                             position would read everything a second time
met for the first time                       noted where ``appeared.py`` says: what it holds from there on was written
                                             after the query began. Read from the next batch on, which keeps a batch's
                                             ranges a matter of its two offsets alone
another incarnation than before              data loss; if that is accepted, noted like one met for the first time
ends before the offset to read next          stays, as during a failover, until that is overdue: then data loss, and if
                                             that is accepted it goes on at that end
begins after the offset to read next         data loss; if that is accepted, read from its start
else                                         read up to its end, or as far as the limits allow
===========================================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from metaq.model import OffsetRange, PartitionState, TopicPartition
from metaq_spark.offsets import AvailableRanges, Offsets, Progress, Since
from metaq_spark.source.backend import LossSentences, Positions
from metaq_spark.source.limits import BatchLimits, limited
from metaq_spark.source.losses import ReportLoss

_NONE: Final[Offsets] = MappingProxyType({})


@dataclass(slots=True)
class Plan:
    """A micro-batch before limits: ``ahead`` can be read, every other partition ends where ``at`` says.

    ``passed_over``: a partition continues after an accepted loss.
    """

    at: dict[TopicPartition, int] = field(default_factory=dict)
    ahead: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    incarnations: dict[TopicPartition, str] = field(default_factory=dict)
    passed_over: bool = False
    since: Since | None = None

    def end(self, limits: BatchLimits, positions: Positions) -> Progress:
        """Where the batch ends under ``limits``."""
        return Progress(self.at | limited(self.ahead, limits, positions), self.incarnations, since=self.since)


def plan_batch(
    known: Progress,
    available: AvailableRanges,
    *,
    begins: Offsets = _NONE,
    ceiling: Progress | None = None,
    overdue: Collection[TopicPartition] = (),
    sentences: LossSentences,
    report_loss: ReportLoss,
) -> Plan:
    """Return what can be read from ``known`` on, given the brokers' ranges; see the module.

    ``begins``: start offsets of new partitions, if not their start. ``ceiling`` (AvailableNow): upper limits;
    partitions that it does not name, or names in another incarnation, are left for another run. ``overdue``: partitions
    of ``suspect`` that were waited for long enough.
    """
    if ceiling is not None:
        available = _lowered(known, available, ceiling)
    plan = Plan(dict(known.offsets), incarnations=dict(known.incarnations), since=known.since)
    for where in sorted(_not_unchanged(known, available)):
        if where not in available:
            if where in overdue:
                report_loss(f"{where}: {sentences.not_listed}")
        elif where not in known.offsets:
            _note(plan, where, begins.get(where, available[where].offsets.start), available[where].incarnation)
        else:
            _go_on(plan, where, available[where], where in overdue, sentences, report_loss)
    return plan


def _not_unchanged(known: Progress, available: AvailableRanges) -> set[TopicPartition]:
    """Return the partitions whose end or incarnation differs from the query's progress."""
    found = known.offsets.keys() - available.keys()
    for where, one in available.items():
        at, span = known.offsets.get(where), one.offsets
        if at != span.end or at < span.start or known.incarnations.get(where) != one.incarnation:
            found.add(where)
    return found


def suspect(known: Progress, available: AvailableRanges) -> set[TopicPartition]:
    """Partitions that are not listed, or end before the offset to read next: it may pass, or be a loss."""
    return {
        where
        for where, at in known.offsets.items()
        if where not in available
        or (available[where].offsets.end < at and not _made_again(known, where, available[where]))
    }


def waited_for(
    since_s: Mapping[TopicPartition, float], now_suspect: Collection[TopicPartition], now_s: float
) -> dict[TopicPartition, float]:
    """Since when each partition has been suspect without a break: ``since_s`` brought up to ``now_s``, in seconds."""
    return {where: since_s.get(where, now_s) for where in now_suspect}


def ranges_between(start: Progress, end: Progress) -> dict[TopicPartition, OffsetRange]:
    """Return the ranges that a batch from ``start`` to ``end`` reads: the partitions that moved, in order.

    A partition that is only in ``end``, or has another incarnation there, was found in that batch; the next batch reads
    it from the recorded offset. A batch that only moves the query reads nothing.
    """
    if end.moved:
        return {}
    before, after = start.incarnations, end.incarnations
    return {
        where: OffsetRange(start.offsets[where], end.offsets[where])
        for where in sorted(_moved(start.offsets, end.offsets))
        if before.get(where, after.get(where)) == after.get(where)
    }


def _moved(start: Offsets, end: Offsets) -> list[TopicPartition]:
    return [where for where, at in end.items() if at > start.get(where, at)]


def _lowered(known: Progress, available: AvailableRanges, ceiling: Progress) -> dict[TopicPartition, PartitionState]:
    """Return ``available`` limited to ``ceiling``, but not below the query's position."""
    lowered = {}
    for where, one in available.items():
        if where in ceiling.offsets and not _made_again(ceiling, where, one):
            end = min(one.offsets.end, max(ceiling.offsets[where], known.offsets.get(where, 0)))
            lowered[where] = PartitionState(OffsetRange(one.offsets.start, end), one.incarnation)
        elif where in known.offsets and _made_again(known, where, one):  # that is reported, but not read
            lowered[where] = PartitionState(OffsetRange(one.offsets.start, one.offsets.start), one.incarnation)
    return lowered


def _made_again(known: Progress, where: TopicPartition, available: PartitionState) -> bool:
    before = known.incarnations.get(where)
    return before is not None and available.incarnation is not None and before != available.incarnation


def _note(plan: Plan, where: TopicPartition, at: int, incarnation: str | None) -> None:
    plan.at[where] = at
    if incarnation is not None:
        plan.incarnations[where] = incarnation


def _go_on(
    plan: Plan,
    where: TopicPartition,
    available: PartitionState,
    overdue: bool,
    sentences: LossSentences,
    report_loss: ReportLoss,
) -> None:
    at, span = plan.at[where], available.offsets
    facts = f"{where}: offset {at} was to be read next, but the broker holds [{span.start}, {span.end})"
    if _made_again(Progress({}, plan.incarnations), where, available):
        report_loss(f"{facts} of another incarnation: {sentences.made_again}")
        at = span.start
    elif span.end < at and overdue:
        report_loss(f"{facts}: {sentences.end_lost}")
        at = span.end
    elif span.end < at:
        return
    elif at < span.start:
        report_loss(f"{facts}: {sentences.removed}")
        plan.ahead[where] = span
    else:
        plan.ahead[where] = OffsetRange(at, span.end)
    plan.passed_over |= where not in plan.ahead or at < span.start
    _note(plan, where, at, available.incarnation)
