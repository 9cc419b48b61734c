"""Tasks that read several small ranges one after the other.

A task in Python costs Spark some ten milliseconds, whatever it reads. A micro-batch over a hundred partitions with ten
messages each would spend a second and more on a hundred tasks; put together, it is one or two. Which ranges are put
together depends on their sizes and order alone, so a batch that is planned again has the same tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from metaq_spark.backends.metaq.cluster import SessionPool
from metaq_spark.garbage_collection import freeze_modules
from metaq_spark.options.parsing import SourceOptions
from metaq_spark.source.partition_reader import RangePartition, read_partition
from metaq_spark.source.splits import TaskRange


@dataclass(frozen=True)
class RangeGroup(InputPartition):
    """Several ranges for one task, in order."""

    parts: tuple[RangePartition, ...]


def grouped(
    task_ranges: Sequence[TaskRange], bytes_min: int, *, count_min: int | None = None, bytes_max: int | None = None
) -> list[list[TaskRange]]:
    """``task_ranges`` in groups of neighbours of up to ``bytes_min`` bytes; a larger piece is a group of its own.

    ``count_min`` and ``bytes_max`` (``None`` = no matter) go before: there are never fewer groups than ``count_min``
    because of this, and none above ``bytes_max`` that is not a single piece.
    """
    total = sum(task_range.size for task_range in task_ranges)
    largest = min(bytes_min, bytes_max or bytes_min, total // (count_min or 1))
    spare = len(task_ranges) - (count_min or 0)  # how many groups fewer than pieces there may be
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


def read_task(partition: InputPartition, options: SourceOptions, pool: SessionPool | None) -> Iterator[pa.RecordBatch]:
    """The rows of a task, range by range; see ``read_partition``. The rows of a bundle come as one batch."""
    freeze_modules()
    if isinstance(partition, RangePartition):
        yield from read_partition(partition, options, pool)
    elif isinstance(partition, RangeGroup):  # anything else is Spark's stand-in where there is nothing to read
        batches = list(_read_group(partition.parts, options, pool))
        if batches:
            yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def _read_group(
    parts: Sequence[RangePartition], options: SourceOptions, pool: SessionPool | None
) -> Iterator[pa.RecordBatch]:
    from metaq_spark.backends.metaq.small_ranges import read_small

    together = read_small(parts, options, pool)
    for part in parts:
        yield from together[part] if part in together else read_partition(part, options, pool)
