"""How ranges are cut into tasks, as tables. Partitions are written as letters, frames by their boundaries."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fix_planning import Boundaries, spans, tp
from hypothesis import given
from hypothesis import strategies as st

from metaq.model import OffsetRange
from metaq_spark.errors import OptionError
from metaq_spark.source.splits import SplitLimits, TaskRange, split


def task_ranges(letter: str, *marks: int) -> list[TaskRange]:
    return [TaskRange(tp(letter), start, end) for start, end in pairwise(marks)]


@pytest.mark.parametrize(
    ("boundaries", "split_limits", "expected"),
    [
        ({"a": [*range(0, 101, 10)]}, SplitLimits(), task_ranges("a", 0, 100)),
        ({"a": [*range(0, 101, 10)]}, SplitLimits(task_count_min=1), task_ranges("a", 0, 100)),
        ({"a": [*range(0, 101, 10)]}, SplitLimits(task_count_min=4), task_ranges("a", 0, 20, 50, 70, 100)),
        ({"a": [*range(0, 101, 10)]}, SplitLimits(task_bytes_max=50), task_ranges("a", 0, 50, 100)),
        # a piece of two messages that is too large is cut once more
        ({"a": [*range(0, 301, 60)]}, SplitLimits(task_bytes_max=100), task_ranges("a", 0, 60, 120, 180, 240, 300)),
        # a single message may be larger
        ({"a": [0, 90, 100]}, SplitLimits(task_bytes_max=20), task_ranges("a", 0, 90, 100)),
        # not more tasks than messages
        ({"a": [0, 90, 100]}, SplitLimits(task_count_min=50), task_ranges("a", 0, 90, 100)),
        # cuts in proportion: the large range gets them
        (
            {"a": [0, 10], "b": [*range(0, 101, 10)]},
            SplitLimits(task_count_min=3),
            [*task_ranges("a", 0, 10), *task_ranges("b", 0, 30, 60, 100)],
        ),
        # one message hides the even cuts; the others are cut instead
        ({"a": [0, 80, 85, 90, 95, 100]}, SplitLimits(task_count_min=4), task_ranges("a", 0, 80, 85, 90, 100)),
    ],
)
def test_splits(boundaries: dict[str, list[int]], split_limits: SplitLimits, expected: list[TaskRange]) -> None:
    ranges = {tp(letter): OffsetRange(0, marks[-1]) for letter, marks in boundaries.items()}
    assert split(ranges, split_limits, Boundaries(**boundaries)) == expected


sizes = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=12), min_size=1, max_size=5)


@given(sizes, st.none() | st.integers(1, 40), st.none() | st.integers(1, 200))
def test_every_message_is_in_exactly_one_task_range(
    sizes: list[list[int]], count_min: int | None, bytes_max: int | None
) -> None:
    boundaries = {
        chr(ord("a") + place): [0, *(sum(frames[: count + 1]) for count in range(len(frames)))]
        for place, frames in enumerate(sizes)
    }
    ranges = {tp(letter): OffsetRange(0, marks[-1]) for letter, marks in boundaries.items()}
    found = split(ranges, SplitLimits(count_min, bytes_max), Boundaries(**boundaries))
    assert found == sorted(found)
    for letter, marks in boundaries.items():
        mine = [task_range for task_range in found if task_range.where == tp(letter)]
        assert [task_range.start for task_range in mine] == [
            0,
            *(task_range.end for task_range in mine[:-1]),
        ]  # no gap, no overlap
        assert mine[-1].end == marks[-1]
        assert {task_range.start for task_range in mine} <= set(marks)
    messages = {
        task_range: sum(
            task_range.start <= mark < task_range.end for mark in boundaries["abcde"[task_range.where.partition.index]]
        )
        for task_range in found
    }
    assert all(task_range.size <= (bytes_max or task_range.size) or messages[task_range] == 1 for task_range in found)
    assert len(found) >= min(count_min or 1, sum(map(len, sizes)))
    again = split(dict(reversed(ranges.items())), SplitLimits(count_min, bytes_max), Boundaries(**boundaries))
    assert again == found


def test_cuts_that_retention_has_overtaken_are_left_out() -> None:
    class Removed(Boundaries):
        def boundaries(self, asked):
            return {where: [max(40, at) for at in found] for where, found in super().boundaries(asked).items()}

    found = split(spans(a=(0, 100)), SplitLimits(task_count_min=5), Removed())
    assert (found[0].start, found[-1].end) == (0, 100)
    assert all(task_range.end > task_range.start for task_range in found)


def test_empty_ranges_make_no_task_and_many_partitions_few_questions() -> None:
    frames = Boundaries()
    assert split(spans(a=(5, 5)), SplitLimits(4, 10), frames) == []
    many = {tp("a").__class__("t", tp("a").partition.__class__(0, n)): OffsetRange(0, 100) for n in range(1000)}
    assert len(split(many, SplitLimits(task_count_min=5000), frames)) == 5000
    assert frames.rounds <= 3


def test_a_split_into_too_many_tasks_is_refused() -> None:
    with pytest.raises(OptionError, match="maxBytesPerPartition: 1 bytes cut 1000000 bytes into more than 100000"):
        split(spans(a=(0, 1_000_000)), SplitLimits(task_bytes_max=1), Boundaries())
