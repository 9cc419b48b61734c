"""Cuts the ranges of a read into tasks. Asks brokers only through ``positions``.

Cuts are message boundaries, and ranges are half-open, so that each message is in exactly one task: the one whose range
holds its offset. The result depends only on the ranges and the message boundaries: a batch that is planned again is cut
the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from metaq.model import OffsetRange, TopicPartition
from metaq_spark.errors import OptionError
from metaq_spark.offsets import Ranges
from metaq_spark.options.values import TASK_COUNT_MAX
from metaq_spark.source.backend import Boundaries, Cuts


class TaskRange(NamedTuple):
    """A part of a partition's range. Orders by partition, then offset."""

    where: TopicPartition
    start: int
    end: int
    bytes_per_offset: float = 1

    @property
    def size(self) -> int:
        """Bytes."""
        return int((self.end - self.start) * self.bytes_per_offset)

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.start, self.end)

    def at_bytes(self, count: int) -> int:
        """The offset ``count`` bytes after its start, at least the next one."""
        return self.start + max(1, int(count // self.bytes_per_offset))

    def cut(self, marks: Iterable[int]) -> list[TaskRange]:
        """Return the parts between the ``marks`` that are inside the range; the range itself if none is."""
        inside = sorted({mark for mark in marks if self.start < mark < self.end})
        return [self._replace(start=start, end=end) for start, end in pairwise([self.start, *inside, self.end])]


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """How a read is cut: the least number of tasks, and most bytes of each; ``None`` = no limit."""

    task_count_min: int | None = None
    task_bytes_max: int | None = None


def split(ranges: Ranges, limits: SplitLimits, positions: Boundaries) -> list[TaskRange]:
    """Return the task ranges of ``ranges``, in order and without gaps within a partition.

    A task exceeds ``task_bytes_max`` only if it is a single message; there are fewer tasks than ``task_count_min`` only
    if each is a single message.

    Raises:
        OptionError: ``task_bytes_max`` would result in more than ``TASK_COUNT_MAX`` tasks.
    """
    scales = positions.bytes_per_offset(ranges)
    whole = [TaskRange(where, one.start, one.end, scales[where]) for where, one in sorted(ranges.items()) if len(one)]
    task_ranges = _evenly(whole, limits, positions)
    single: set[TaskRange] = set()
    while wanted := _still_to_cut(task_ranges, limits, single):
        found = _cut(wanted, positions)
        single |= {task_range for task_range, parts in found.items() if len(parts) == 1}
        task_ranges = [part for task_range in task_ranges for part in found.get(task_range, [task_range])]
    return task_ranges


def _evenly(whole: list[TaskRange], limits: SplitLimits, positions: Boundaries) -> list[TaskRange]:
    """A first cut into parts of about the size that is wanted, with one question for each partition."""
    total, largest = sum(task_range.size for task_range in whole), limits.task_bytes_max
    if largest is not None and total // largest > TASK_COUNT_MAX:
        raise OptionError(
            "maxBytesPerPartition", f"{largest} bytes cut {total} bytes into more than {TASK_COUNT_MAX} tasks"
        )
    counts = {task_range: _parts(task_range, total, limits) for task_range in whole}
    asked = {
        task_range.where: Cuts(
            task_range.start, [task_range.start + len(task_range.offsets) * n // count for n in range(1, count)]
        )
        for task_range, count in counts.items()
        if count > 1
    }
    found = positions.boundaries(asked) if asked else {}
    return [part for task_range in whole for part in task_range.cut(found.get(task_range.where, ()))]


def _parts(task_range: TaskRange, total: int, limits: SplitLimits) -> int:
    """Return the number of parts of a range, in proportion to its share of the ``total`` bytes, rounded up."""
    by_count = -(-task_range.size * (limits.task_count_min or 1) // max(1, total))
    by_bytes = -(-task_range.size // (limits.task_bytes_max or max(1, task_range.size)))
    return max(by_count, by_bytes)


def _still_to_cut(task_ranges: list[TaskRange], limits: SplitLimits, single: set[TaskRange]) -> dict[TaskRange, int]:
    """Ranges that are too large, and the largest ones if there are too few; with the offset to cut each at."""
    left = [task_range for task_range in task_ranges if task_range not in single]
    largest = limits.task_bytes_max
    wanted = {
        task_range: task_range.at_bytes(largest)
        for task_range in left
        if largest is not None and task_range.size > largest
    }
    lacking = (limits.task_count_min or 0) - len(task_ranges) - len(wanted)
    spare = sorted(
        (task_range for task_range in left if task_range not in wanted),
        key=lambda task_range: (-task_range.size, task_range),
    )
    return wanted | {
        task_range: task_range.start + len(task_range.offsets) // 2 for task_range in spare[: max(0, lacking)]
    }


def _cut(wanted: dict[TaskRange, int], positions: Boundaries) -> dict[TaskRange, list[TaskRange]]:
    """Cut each range in two at the last boundary at or below the wanted offset, else after its first message."""
    asked: dict[TopicPartition, list[TaskRange]] = {}
    for task_range in sorted(wanted):
        asked.setdefault(task_range.where, []).append(task_range)
    questions = {where: Cuts(parts[0].start, [wanted[part] for part in parts]) for where, parts in asked.items()}
    answers = positions.boundaries(questions)
    found = {p: p.cut([at]) for where, parts in asked.items() for p, at in zip(parts, answers[where], strict=True)}
    whole = {(task_range.where, task_range.start): task_range for task_range, parts in found.items() if len(parts) == 1}
    ends = positions.message_ends(whole) if whole else {}
    return found | {task_range: task_range.cut([ends[place]]) for place, task_range in whole.items()}
