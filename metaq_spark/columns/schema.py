"""The columns of a read, in Spark's types and in Arrow's, and the columns that a write takes.

Spark compares a batch's Arrow schema with its own, names, order, types and nullability; nothing near enough is
accepted.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from metaq.model import TopicPartition

READ_COLUMNS: Final = (
    ("topic", "string", pa.string()),
    ("broker_id", "int", pa.int32()),
    ("partition", "int", pa.int32()),
    ("offset", "bigint", pa.int64()),
    ("message_id", "bigint", pa.int64()),
    ("timestamp", "timestamp", pa.timestamp("us", tz="UTC")),
    ("attribute", "string", pa.string()),
    ("value", "binary", pa.binary()),
)
"""Name, Spark SQL type and Arrow type of every column of a read, in order; all nullable."""

READ_DDL: Final = ", ".join(f"`{name}` {spark_type}" for name, spark_type, _ in READ_COLUMNS)
"""The columns of a read as Spark SQL spells them."""

ARROW_SCHEMA: Final = pa.schema([pa.field(name, arrow_type) for name, _, arrow_type in READ_COLUMNS])
"""The schema of every record batch of a read."""


class ConstantColumns:
    """``topic``, ``broker_id`` and ``partition`` of one partition: made once, then sliced to each batch's length."""

    def __init__(self, source: TopicPartition, rows_max: int) -> None:
        self._arrays = [
            pa.repeat(pa.scalar(source.topic, pa.string()), rows_max),
            pa.repeat(pa.scalar(source.partition.broker_id, pa.int32()), rows_max),
            pa.repeat(pa.scalar(source.partition.index, pa.int32()), rows_max),
        ]

    def batch(self, *others: pa.Array) -> pa.RecordBatch:
        """A record batch with the other columns behind the constant ones."""
        rows = len(others[0])
        return pa.RecordBatch.from_arrays([a.slice(0, rows) for a in self._arrays] + list(others), schema=ARROW_SCHEMA)
