"""Groups ranges into tasks, some with several small ranges; and yields the rows of a task.

A Python task costs Spark some ten milliseconds, whatever it reads. A micro-batch over a hundred partitions with ten
messages each would spend more than a second on a hundred tasks; grouped, it has one or two. The grouping depends only
on the sizes and order of the ranges, so a batch that is planned again has the same tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from metaq.errors import MetaqError
from metaq.model import TopicPartition
from metaq_spark.garbage_collection import freeze_modules
from metaq_spark.offsets import Ranges
from metaq_spark.source.backend import Source
from metaq_spark.source.splits import SplitLimits, TaskRange, split

GROUP_BYTES_MAX: Final = 4 << 20
"""Bytes of rows of a group that are put together into one batch. Sizes of ranges may be estimates."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RangeGroup(InputPartition):
    """Several ranges for one task, in order."""

    parts: tuple[InputPartition, ...]


def grouped(
    task_ranges: Sequence[TaskRange], bytes_min: int, *, count_min: int | None = None, bytes_max: int | None = None
) -> list[list[TaskRange]]:
    """Group neighbouring ``task_ranges`` up to ``bytes_min`` bytes; a larger range is a separate group.

    ``count_min`` and ``bytes_max`` (``None`` = no limit) take precedence: grouping never leaves fewer groups than
    ``count_min``, nor makes one above ``bytes_max`` of several ranges.
    """
    total = sum(task_range.size for task_range in task_ranges)
    largest = min(bytes_min, bytes_max or bytes_min, total // (count_min or 1))
    spare = len(task_ranges) - (count_min or 0)  # how many groups fewer than ranges there may be
    groups: list[list[TaskRange]] = []
    size = 0
    for task_range in task_ranges:
        if groups and size + task_range.size <= largest and spare > 0:
            groups[-1].append(task_range)
            size, spare = size + task_range.size, spare - 1
        else:
            groups.append([task_range])
            size = task_range.size
    return groups


def tasks(ranges: Ranges, incarnations: Mapping[TopicPartition, str], source: Source) -> list[InputPartition]:
    """Return one task for each range, or more or fewer as the options say, in order of partitions and offsets.

    A range of a partition that has vanished meanwhile is not cut: its task reports the loss.
    """
    options, positions = source.options, source.cluster.positions
    try:
        task_ranges = split(ranges, SplitLimits(options.task_count_min, options.task_bytes_max), positions)
    except MetaqError as error:
        if not source.is_data_loss(error):
            raise
        _log.warning("%s. The batch is not cut into smaller tasks", error)
        task_ranges = split(ranges, SplitLimits(), positions)

    def part(task_range: TaskRange) -> InputPartition:
        return source.part(task_range.where, task_range.offsets, incarnations.get(task_range.where))

    least, most, count = options.task_bytes_min, options.task_bytes_max, options.task_count_min
    groups = grouped(task_ranges, least, count_min=count, bytes_max=most)
    return [part(group[0]) if len(group) == 1 else RangeGroup(tuple(map(part, group))) for group in groups]


def read_task(task: InputPartition | None, source: Source) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, range by range; see ``Source.read``. Few rows of a group form one batch."""
    freeze_modules()
    if task is None or type(task) is InputPartition:  # a placeholder: nothing is to be read; ``None`` before Spark 4.2
        return iter(())
    return _joined(source.read(task.parts)) if isinstance(task, RangeGroup) else source.read((task,))


def _joined(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        batches.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES_MAX:
            yield from _combined(batches)
            batches, size = [], 0
    yield from _combined(batches)


def _combined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
