"""The streaming sink for Spark 4.0, which passes rows instead of Arrow batches: batches are made of them again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from metaq_spark.plain_errors import plain_errors
from metaq_spark.sink.backend import Sink
from metaq_spark.sink.writers import StreamWriter
from metaq_spark.spark_version import arrow_type, say_once, spark_version

BATCH_ROWS: Final = 4096
"""Rows of one batch. Spark holds at least as many in memory, of which it makes the rows."""


class RowStreamWriter(StreamWriter):
    """A ``StreamWriter`` of rows with ``schema``. Says once that it is slower."""

    def __init__(self, sink: Sink, schema: StructType) -> None:
        super().__init__(sink)
        self._schema = schema
        say_once(
            f"Spark {spark_version()} passes a stream's rows to a sink one by one, which is several times slower than "
            "the Arrow batches of Spark 4.1"
        )

    @plain_errors
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return super().write(row_batches(iterator, self._schema))


def row_batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` in Arrow batches of up to ``BATCH_ROWS``. They have ``schema``, in this order."""
    arrow = pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in schema.fields])
    while chunk := list(islice(rows, BATCH_ROWS)):
        columns = [
            pa.array([_plain(value) for value in column] if pa.types.is_nested(field.type) else column, field.type)
            for column, field in zip(zip(*chunk, strict=True), arrow, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=arrow)


def _plain(value: Any) -> Any:
    """A value of a nested type as Arrow takes it: a map as pairs, a row as a dictionary."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, Row):
        return value.asDict()
    return [_plain(each) for each in value] if isinstance(value, list) else value
