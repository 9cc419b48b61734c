"""From where a read is to start or end, as the user says it, to byte offsets.

Questions about times and consumer groups are answered by the two functions of ``Lookups``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from metaq.model import OffsetRange, TopicPartition
from metaq_spark.errors import OptionError
from metaq_spark.offsets import Offsets, Ranges
from metaq_spark.options.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Earliest,
    Group,
    Latest,
    Position,
    Specific,
    Timestamps,
)
from metaq_spark.source.frames import Cuts, FrameBoundaries
from metaq_spark.source.planning import ReportLoss


@dataclass(frozen=True, slots=True)
class Lookups:
    """``first_at``: the first message at or after each time in ms, or the end. ``group``: where the group is."""

    first_at: Callable[[Mapping[TopicPartition, int]], Offsets]
    group: Callable[[Collection[TopicPartition]], Offsets]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a read: ``position`` as given by ``option``.

    ``latest_if_none``: begin or stop at the end where no message is as new as a time; otherwise that is an error.
    """

    option: str
    position: Position
    latest_if_none: bool = False

    def resolve(self, held: Ranges, lookups: Lookups, report_loss: ReportLoss) -> dict[TopicPartition, int]:
        """The byte offset of every partition in ``held``.

        Raises:
            OptionError: A position leaves a partition out, or names one that is not there, or a time with no message.
        """
        match self.position:
            case Earliest():
                return {where: held[where].start for where in sorted(held)}
            case Latest():
                return {where: held[where].end for where in sorted(held)}
            case Specific(offsets):
                self._check_offsets(offsets, held)
                return self._within(offsets, held, report_loss)
            case Group():
                found = lookups.group(sorted(held))
                return self._within({w: found.get(w, EARLIEST_OFFSET) for w in held}, held, report_loss)
            case Timestamps(of_all_ms, of_each_ms):
                times_ms = of_each_ms if of_all_ms is None else dict.fromkeys(held, of_all_ms)
                self._check_times(times_ms, held)
                return self._by_time({where: times_ms[where] for where in sorted(held)}, held, lookups)

    def check_boundaries(self, offsets: Offsets, held: Ranges, frames: FrameBoundaries) -> None:
        """Check that offsets given by hand are where messages begin: from any other byte, nothing can be read.

        Raises:
            OptionError: One is inside a message.
        """
        if not isinstance(self.position, Specific | Group):
            return
        asked = {
            where: Cuts(held[where].start, [offset])
            for where, offset in offsets.items()
            if offset not in (held[where].start, held[where].end)
        }
        for where, (boundary,) in frames.boundaries(asked).items() if asked else ():
            if boundary != offsets[where]:
                raise OptionError(
                    self.option,
                    f"offset {offsets[where]} of {where} is inside a message; the message starts at {boundary}",
                )

    def _check_offsets(self, offsets: Offsets, held: Ranges) -> None:
        if missing := held.keys() - offsets.keys():
            raise OptionError(
                self.option,
                f"{_names(missing)} is missing; name every partition, with -2 for earliest or -1 for latest",
            )
        # A partition that was never written to holds nothing, so only "its start" or "its end" can be meant.
        if strangers := [where for where, offset in offsets.items() if where not in held and offset > 0]:
            raise OptionError(self.option, _strange(strangers, held))

    def _check_times(self, times_ms: Mapping[TopicPartition, int], held: Ranges) -> None:
        if missing := held.keys() - times_ms.keys():
            raise OptionError(self.option, f"{_names(missing)} is missing; name every partition")
        strangers = times_ms.keys() - held.keys()
        if strangers and not self.latest_if_none:
            raise OptionError(self.option, _strange(strangers, held))

    def _within(self, offsets: Offsets, held: Ranges, report_loss: ReportLoss) -> dict[TopicPartition, int]:
        found = {}
        for where, span in sorted(held.items()):
            at = {EARLIEST_OFFSET: span.start, LATEST_OFFSET: span.end}.get(offsets[where], offsets[where])
            if not span.start <= at <= span.end:
                report_loss(f"{self.option}: offset {at} of {where} is outside of what the broker holds, {_span(span)}")
            found[where] = min(max(at, span.start), span.end)
        return found

    def _by_time(
        self, times_ms: Mapping[TopicPartition, int], held: Ranges, lookups: Lookups
    ) -> dict[TopicPartition, int]:
        found = lookups.first_at(times_ms)
        # What came after ``held`` was looked up is none of this read's business: the end then was the end.
        late = [where for where in sorted(held) if found[where] >= held[where].end]
        if late and not self.latest_if_none:
            raise OptionError(
                self.option,
                f"{_names(late)} has no message at or after {', '.join(str(times_ms[where]) for where in late[:10])} "
                "(ms since 1970); set startingOffsetsByTimestampStrategy to latest to begin at the end there",
            )
        return {where: min(max(found[where], held[where].start), held[where].end) for where in sorted(held)}


def _strange(partitions: Iterable[TopicPartition], held: Ranges) -> str:
    return f"{_names(partitions)} holds no messages, or its topic is not subscribed; there is {_names(held)}"


def _span(held: OffsetRange) -> str:
    return f"[{held.start}, {held.end})"


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(where) for where in sorted(partitions)]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") or "none"
