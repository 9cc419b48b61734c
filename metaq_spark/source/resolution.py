"""Resolves the user's start and end positions into offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from metaq.model import OffsetRange, TopicPartition
from metaq_spark.errors import OptionError
from metaq_spark.offsets import Offsets, Ranges
from metaq_spark.options.parsing import ReadOptions
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
from metaq_spark.options.selection import chosen
from metaq_spark.source.backend import Boundaries, Cuts, Positions, Source
from metaq_spark.source.losses import ReportLoss, report_data_loss

GroupPositions = Callable[[Collection[TopicPartition]], Offsets]
"""Where a consumer group is in each of some partitions."""


def require_named(source: Source) -> None:
    """Check that the partitions named in start and end options exist, whatever their offsets.

    Raises:
        MetaqError: The broker of one is not found, or it has no such partition.
    """
    options = source.options
    for option, position in ((options.start_option, options.start), (options.end_option, options.end)):
        named = chosen(options.selection, dict.fromkeys(named_in(position)))
        if named:
            source.cluster.require_there(option, sorted(named))


def named_in(position: Position) -> Collection[TopicPartition]:
    """The partitions that a position names one by one."""
    match position:
        case Specific(offsets):
            return offsets.keys()
        case Timestamps(of_each_ms=of_each_ms):
            return of_each_ms.keys()
    return ()


def starting_offsets(source: Source, available: Ranges) -> dict[TopicPartition, int]:
    """Return the start of the read in every partition of ``available``.

    Raises:
        OptionError: The start options do not match the partitions.
        DataLoss: They name deleted messages, and the option ``failOnDataLoss`` is true.
    """
    options, groups = source.options, source.groups
    bound = Bound(options.start_option, options.start, latest_if_none=options.no_message_strategy == "latest")

    def of_group(partitions: Collection[TopicPartition]) -> Offsets:
        assert groups is not None  # the options were checked
        assert options.group is not None
        return groups.positions(options.group, partitions)

    found = bound.resolve(available, source.cluster.positions, of_group, _report(options))
    bound.check_boundaries(found, available, source.cluster.positions)
    return found


def ending_offsets(source: Source, available: Ranges) -> dict[TopicPartition, int]:
    """Where a batch read stops. Raises as ``starting_offsets``."""
    options = source.options
    bound = Bound(options.end_option, options.end, latest_if_none=True)
    return bound.resolve(available, source.cluster.positions, no_group, _report(options))


def _report(options: ReadOptions) -> ReportLoss:
    return partial(report_data_loss, fail=options.fail_on_data_loss)


def no_group(partitions: Collection[TopicPartition]) -> Offsets:
    """For positions that are not a group's."""
    raise AssertionError(f"a group's offsets were asked for, of {len(partitions)} partitions")


@dataclass(frozen=True, slots=True)
class Bound:
    """One side of a read: ``position`` as given by ``option``.

    ``latest_if_none``: use the end if no message is as new as a time; otherwise that is an error.
    """

    option: str
    position: Position
    latest_if_none: bool = False

    def resolve(
        self, available: Ranges, positions: Positions, of_group: GroupPositions, report_loss: ReportLoss
    ) -> dict[TopicPartition, int]:
        """Return the offset for every partition in ``available``.

        Raises:
            OptionError: A position omits a partition, names one that does not exist, or a time after the last message.
        """
        match self.position:
            case Earliest():
                return {where: available[where].start for where in sorted(available)}
            case Latest():
                return {where: available[where].end for where in sorted(available)}
            case Specific(offsets):
                self._check_offsets(offsets, available)
                return self._within(offsets, available, report_loss)
            case Group():
                found = of_group(sorted(available))
                return self._within({w: found.get(w, EARLIEST_OFFSET) for w in available}, available, report_loss)
            case Timestamps(of_all_ms, of_each_ms):
                times_ms = of_each_ms if of_all_ms is None else dict.fromkeys(available, of_all_ms)
                self._check_times(times_ms, available)
                return self._by_time({where: times_ms[where] for where in sorted(available)}, available, positions)

    def check_boundaries(self, offsets: Offsets, available: Ranges, positions: Boundaries) -> None:
        """Check that explicit offsets are message boundaries: nothing can be read from any other offset.

        Raises:
            OptionError: One is inside a message.
        """
        if not isinstance(self.position, Specific | Group):
            return
        asked = {
            where: Cuts(available[where].start, [offset])
            for where, offset in offsets.items()
            if offset not in (available[where].start, available[where].end)
        }
        for where, (boundary,) in positions.boundaries(asked).items() if asked else ():
            if boundary != offsets[where]:
                raise OptionError(
                    self.option,
                    f"offset {offsets[where]} of {where} is inside a message; the message starts at {boundary}",
                )

    def _check_offsets(self, offsets: Offsets, available: Ranges) -> None:
        if missing := available.keys() - offsets.keys():
            raise OptionError(
                self.option,
                f"no value for {_names(missing)}; expected one for every partition, -2 for earliest or -1 for latest",
            )
        # An empty partition has only one valid offset, 0.
        if unknown := [where for where, offset in offsets.items() if where not in available and offset > 0]:
            raise OptionError(self.option, _not_there(unknown, available))

    def _check_times(self, times_ms: Mapping[TopicPartition, int], available: Ranges) -> None:
        if missing := available.keys() - times_ms.keys():
            raise OptionError(self.option, f"no value for {_names(missing)}; expected one for every partition")
        unknown = times_ms.keys() - available.keys()
        if unknown and not self.latest_if_none:
            raise OptionError(self.option, _not_there(unknown, available))

    def _within(self, offsets: Offsets, available: Ranges, report_loss: ReportLoss) -> dict[TopicPartition, int]:
        found = {}
        for where, span in sorted(available.items()):
            at = {EARLIEST_OFFSET: span.start, LATEST_OFFSET: span.end}.get(offsets[where], offsets[where])
            if not span.start <= at <= span.end:
                report_loss(f"{self.option}: offset {at} of {where} is outside of what the broker holds, {_span(span)}")
            found[where] = min(max(at, span.start), span.end)
        return found

    def _by_time(
        self, times_ms: Mapping[TopicPartition, int], available: Ranges, positions: Positions
    ) -> dict[TopicPartition, int]:
        found = positions.first_at(times_ms)
        # Ignore messages stored after ``available`` was looked up: its end is the end of this read.
        late = [where for where in sorted(available) if found[where] >= available[where].end]
        if late and not self.latest_if_none:
            raise OptionError(
                self.option,
                f"{_names(late)} has no message at or after {', '.join(str(times_ms[where]) for where in late[:10])} "
                "(ms since 1970); set startingOffsetsByTimestampStrategy to latest to begin at the end there",
            )
        return {
            where: min(max(found[where], available[where].start), available[where].end) for where in sorted(available)
        }


def _not_there(partitions: Iterable[TopicPartition], available: Ranges) -> str:
    return f"{_names(partitions)}: no messages, or not subscribed; partitions with messages: {_names(available)}"


def _span(available: OffsetRange) -> str:
    return f"[{available.start}, {available.end})"


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(where) for where in sorted(partitions)]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") or "none"
