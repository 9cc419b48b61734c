"""Rows that Spark 4.0 passes to a streaming sink become the Arrow batches that later versions pass."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from metaq_spark.columns.row_layout import HEADERS
from metaq_spark.sink import row_writer
from metaq_spark.sink.row_writer import row_batches

SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("key", LongType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("keys", ArrayType(StringType())),
        StructField("headers", HEADERS),
    ]
)
HEADER = Row("key", "value")
FULL = (
    b"\x00\xff", "orders", 1, 1 << 40, {"a": "1", "b": None}, ["k1", "k2"], [HEADER("h", b"\xff"), HEADER("h", None)]
)  # fmt: skip
EMPTY = (b"", "", 0, 0, {}, [], [])
NULL = (None,) * 7


def batches(*rows: tuple[object, ...]) -> list[pa.RecordBatch]:
    return list(row_batches((Row(*SCHEMA.names)(*row) for row in rows), SCHEMA))


def test_every_type_of_a_column_of_a_write() -> None:
    (batch,) = batches(FULL, EMPTY, NULL)
    assert batch.schema.names == SCHEMA.names
    assert [column.to_pylist() for column in batch.columns] == [
        [b"\x00\xff", b"", None],
        ["orders", "", None],
        [1, 0, None],
        [1 << 40, 0, None],
        [[("a", "1"), ("b", None)], [], None],
        [["k1", "k2"], [], None],
        [[{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}], [], None],
    ]


def test_the_types_are_those_of_later_versions() -> None:
    (batch,) = batches(NULL)
    text = pa.string()
    assert batch.schema.types[:4] == [pa.binary(), text, pa.int32(), pa.int64()]
    assert batch.schema.types[4].item_type == batch.schema.types[5].value_type == text


def test_bytes_come_as_any_kind_of_bytes() -> None:
    (batch,) = batches((bytearray(b"x"), *NULL[1:]), FULL)
    assert batch["value"].to_pylist() == [b"x", b"\x00\xff"]


def test_rows_are_taken_a_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_writer, "BATCH_ROWS", 4)
    taken = 0

    def rows() -> Iterator[Row]:
        nonlocal taken
        for number in range(10):
            taken += 1
            yield Row(b"%d" % number)

    found = row_batches(rows(), StructType([StructField("value", BinaryType())]))
    assert next(found)["value"].to_pylist() == [b"0", b"1", b"2", b"3"]
    assert taken == 4
    assert [batch.num_rows for batch in found] == [4, 2]


def test_no_rows_are_no_batch() -> None:
    assert batches() == []
