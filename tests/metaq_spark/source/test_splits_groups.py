"""Small ranges that share a task: which ones, and that nothing else about a read changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metaq_harness import Harness

from metaq.model import Partition, TopicPartition
from metaq_spark.backends.metaq.partition_reader import RangePartition
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.splits import TaskRange
from metaq_spark.source.tasks import RangeGroup, grouped


def task_ranges(*sizes: int) -> list[TaskRange]:
    return [TaskRange(TopicPartition("t", Partition(0, index)), 100, 100 + size) for index, size in enumerate(sizes)]


def sizes(groups: list[list[TaskRange]]) -> list[list[int]]:
    return [[task_range.size for task_range in group] for group in groups]


@pytest.mark.parametrize(
    ("given_sizes", "bytes_min", "options", "expected"),
    [
        ([], 10, {}, []),
        ([3], 10, {}, [[3]]),
        ([3, 3, 3, 3], 10, {}, [[3, 3, 3], [3]]),
        ([3, 7], 10, {}, [[3, 7]]),
        ([3, 8], 10, {}, [[3], [8]]),
        ([3, 50, 3, 3], 10, {}, [[3], [50], [3, 3]]),
        ([3, 3], 1, {}, [[3], [3]]),
        ([1, 1, 1], 1, {}, [[1], [1], [1]]),
        ([3, 3, 3, 3], 100, {"count_min": 2}, [[3, 3], [3, 3]]),
        ([3, 3, 3, 3], 100, {"count_min": 4}, [[3], [3], [3], [3]]),
        ([3, 3, 3, 3], 100, {"count_min": 9}, [[3], [3], [3], [3]]),
        ([3, 3, 3, 3], 100, {"bytes_max": 7}, [[3, 3], [3, 3]]),
        ([9, 3, 3], 100, {"bytes_max": 7}, [[9], [3, 3]]),
    ],
)
def test_groups(given_sizes: list[int], bytes_min: int, options: dict[str, int], expected: list[list[int]]) -> None:
    assert sizes(grouped(task_ranges(*given_sizes), bytes_min, **options)) == expected


@given(
    st.lists(st.integers(1, 50), max_size=40),
    st.integers(1, 100),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 100),
)
def test_every_range_once_in_order_and_limits_kept(
    given_sizes: list[int], bytes_min: int, count_min: int | None, bytes_max: int | None
) -> None:
    whole = task_ranges(*given_sizes)
    groups = grouped(whole, bytes_min, count_min=count_min, bytes_max=bytes_max)
    assert [task_range for group in groups for task_range in group] == whole
    assert len(groups) >= min(len(whole), count_min or 0)
    for group in groups:
        assert len(group) == 1 or sum(task_range.size for task_range in group) <= min(bytes_min, bytes_max or bytes_min)


def test_many_small_partitions_are_one_task_with_one_batch() -> None:
    harness = Harness()
    for broker in (0, 1):
        for index in (0, 1):
            harness.put("orders", broker, index, f"{broker}-{index} a".encode(), f"{broker}-{index} b".encode())
    reader = BatchReader(MetaQSource(harness.options(Use.BATCH_READ), harness.pool, harness.clock))
    [task] = reader.partitions()
    assert isinstance(task, RangeGroup)
    [batch] = reader.read(task)
    rows = [(row["broker_id"], row["partition"], row["value"].decode()) for row in batch.to_pylist()]
    assert rows == [(n, i, f"{n}-{i} {x}") for n in (0, 1) for i in (0, 1) for x in "ab"]
    alone = BatchReader(
        MetaQSource(harness.options(Use.BATCH_READ, minBytesPerPartition="1"), harness.pool, harness.clock)
    )
    assert [type(task) for task in alone.partitions()] == [RangePartition] * 4
    assert harness.values(alone, alone.partitions()) == batch["value"].to_pylist()
