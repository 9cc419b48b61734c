"""The ceiling of every read: what Spark lets a Python data source do that has nothing to do.

``format("ceiling")`` hands out the same Arrow batch again and again: the columns, types, batch size, rows and number of
tasks of the read that it is compared with, and no broker, no decoding, no checksum behind it. A batch and a stream.

Python workers import this module (``spark_bench.importable_by_workers``): the batch that they make once stays, so no
task has to make it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from metaq_spark.columns.decode import BYTES_MAX, ROWS_MAX
from metaq_spark.columns.schema import ARROW_SCHEMA
from metaq_spark.source.row_layout import RowLayout


@cache
def ceiling_batch(payload_bytes: int, columns: tuple[str, ...]) -> pa.RecordBatch:
    """A batch as the connector makes them, by content and by size."""
    rows = max(1, min(ROWS_MAX, BYTES_MAX // payload_bytes))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(["bench"] * rows, pa.string()),
            pa.array([0] * rows, pa.int32()),
            pa.array([1] * rows, pa.int32()),
            pa.array(range(0, rows * 120, 120), pa.int64()),
            pa.array(range(rows), pa.int64()),
            pa.array(range(rows), pa.timestamp("us", tz="UTC")),
            pa.nulls(rows, pa.string()),
            pa.array([os.urandom(payload_bytes) for _ in range(rows)], pa.binary()),
        ],
        schema=ARROW_SCHEMA,
    ).select(columns)


class CeilingReader(DataSourceReader):
    """Hands out ``rows`` rows over ``tasks`` tasks."""

    def __init__(self, rows: int, payload_bytes: int, tasks: int, columns: tuple[str, ...]) -> None:
        self.rows, self.payload_bytes, self.tasks, self.columns = rows, payload_bytes, tasks, columns

    def partitions(self) -> list[InputPartition]:
        marks = [self.rows * number // self.tasks for number in range(self.tasks + 1)]
        return [InputPartition(end - start) for start, end in pairwise(marks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch, left = ceiling_batch(self.payload_bytes, self.columns), partition.value
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


class CeilingStreamReader(DataSourceStreamReader):
    """The same rows as one micro-batch."""

    def __init__(self, reader: CeilingReader) -> None:
        self._reader = reader

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"row": self._reader.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)


class CeilingSource(DataSource):
    """``format("ceiling")``; options ``rows``, ``payloadBytes``, ``tasks`` and ``columns``."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return RowLayout(self._columns).ddl

    def reader(self, schema: StructType) -> CeilingReader:
        rows, payload_bytes, tasks = (int(self.options[name]) for name in ("rows", "payloadbytes", "tasks"))
        return CeilingReader(rows, payload_bytes, tasks, self._columns)

    def streamReader(self, schema: StructType) -> CeilingStreamReader:
        return CeilingStreamReader(self.reader(schema))

    @property
    def _columns(self) -> tuple[str, ...]:
        return tuple(self.options["columns"].split(","))
