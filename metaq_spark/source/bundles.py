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

from metaq.backends.metaq.pool import SessionPool
from metaq_spark.options.parsing import SourceOptions
from metaq_spark.source.partition_reader import RangePartition, read_partition
from metaq_spark.source.splits import Piece
from metaq_spark.uncollected import keep_modules_uncollected


@dataclass(frozen=True)
class Bundle(InputPartition):
    """Several ranges for one task, in order."""

    parts: tuple[RangePartition, ...]


def bundled(
    pieces: Sequence[Piece], bytes_min: int, *, count_min: int | None = None, bytes_max: int | None = None
) -> list[list[Piece]]:
    """``pieces`` in groups of neighbours of up to ``bytes_min`` bytes; a larger piece is a group of its own.

    ``count_min`` and ``bytes_max`` (``None`` = no matter) go before: there are never fewer groups than ``count_min``
    because of this, and none above ``bytes_max`` that is not a single piece.
    """
    total = sum(piece.size for piece in pieces)
    largest = min(bytes_min, bytes_max or bytes_min, total // (count_min or 1))
    spare = len(pieces) - (count_min or 0)  # how many groups fewer than pieces there may be
    groups: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        if groups and size + piece.size <= largest and spare > 0:
            groups[-1].append(piece)
            size, spare = size + piece.size, spare - 1
        else:
            groups.append([piece])
            size = piece.size
    return groups


def read_task(partition: InputPartition, options: SourceOptions, pool: SessionPool | None) -> Iterator[pa.RecordBatch]:
    """The rows of a task, range by range; see ``read_partition``. The rows of a bundle come as one batch."""
    keep_modules_uncollected()
    if isinstance(partition, RangePartition):
        yield from read_partition(partition, options, pool)
    elif isinstance(partition, Bundle):  # anything else is Spark's stand-in where there is nothing to read
        batches = list(_read_bundle(partition.parts, options, pool))
        if batches:
            yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def _read_bundle(
    parts: Sequence[RangePartition], options: SourceOptions, pool: SessionPool | None
) -> Iterator[pa.RecordBatch]:
    from metaq_spark.backends.metaq.small_ranges import read_small

    together = read_small(parts, options, pool)
    for part in parts:
        yield from together[part] if part in together else read_partition(part, options, pool)
