"""Which columns a write takes, and that a read has its own."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from schemas import struct

from metaq_spark.backends.metaq.sink import SINK_COLUMNS
from metaq_spark.columns.row_layout import message_layout
from metaq_spark.errors import ColumnError
from metaq_spark.sink.columns import SinkColumns, find_sink_columns


@pytest.mark.parametrize(
    ("columns", "topic", "places"),
    [
        (struct(value=BinaryType()), "t", SinkColumns(0)),
        (struct(Value=StringType()), "t", SinkColumns(0)),
        (struct(topic=StringType(), value=StringType()), None, SinkColumns(1, topic=0)),
        (
            struct(
                key=LongType(), partition=IntegerType(), topic=StringType(), attribute=StringType(), value=BinaryType()
            ),
            "t",
            SinkColumns(4, topic=2, partition=1, key=0, others={"attribute": 3}),
        ),
        (struct(value=BinaryType(), key=BinaryType()), "t", SinkColumns(0, key=1)),
        (struct(value=BinaryType(), key=IntegerType()), "t", SinkColumns(0, key=1)),
    ],
)
def test_columns_that_are_taken(columns: StructType, topic: str | None, places: SinkColumns) -> None:
    assert find_sink_columns(columns, topic, SINK_COLUMNS) == places


@pytest.mark.parametrize(
    ("columns", "topic", "words"),
    [
        (struct(payload=BinaryType()), "t", ["column payload", "no such column", "value (binary or string)", "key ("]),
        (struct(value=IntegerType()), "t", ["column value", "type int is not allowed", "binary or string"]),
        (struct(value=BinaryType(), attribute=BinaryType()), "t", ["column attribute", "type binary", "string"]),
        (struct(value=BinaryType(), partition=LongType()), "t", ["column partition", "type bigint", "must be int"]),
        (struct(value=BinaryType(), partition=ShortType()), "t", ["column partition", "type smallint"]),
        (struct(value=BinaryType(), key=TimestampType()), "t", ["column key", "binary or string or int or bigint"]),
        (struct(value=BinaryType(), topic=IntegerType()), "t", ["column topic", "type int", "string"]),
        (struct(topic=StringType()), None, ["column value", "required"]),
        (struct(), "t", ["column value", "required"]),
        (struct(value=BinaryType()), None, ["column topic", "option topic"]),
        (StructType([StructField("value", BinaryType()), StructField("VALUE", BinaryType())]), "t", ["twice"]),
    ],
)
def test_columns_that_are_refused(columns: StructType, topic: str | None, words: list[str]) -> None:
    with pytest.raises(ColumnError) as caught:
        find_sink_columns(columns, topic, SINK_COLUMNS)
    for word in words:
        assert word in str(caught.value)


READ = {
    "topic": StringType(),
    "broker_id": IntegerType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "message_id": LongType(),
    "timestamp": TimestampType(),
    "attribute": StringType(),
    "value": BinaryType(),
}


def test_a_read_with_its_own_columns() -> None:
    message_layout().check(struct(**READ))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (struct(value=StringType()), ["column value", "type string at place 1", "leave .schema(...) out"]),
        (struct(**READ | {"value": StringType()}), ["column value", "type string at place 8"]),
        (struct(**READ, more=StringType()), ["column more", "at place 9"]),
        (struct(**dict(list(READ.items())[:-1])), ["column value", "missing from the schema given"]),
        (struct(**dict(reversed(READ.items()))), ["column value", "type binary at place 1"]),
    ],
)
def test_any_other_schema_is_refused(columns: StructType, words: list[str]) -> None:
    with pytest.raises(ColumnError) as caught:
        message_layout().check(columns)
    for word in words:
        assert word in str(caught.value)
