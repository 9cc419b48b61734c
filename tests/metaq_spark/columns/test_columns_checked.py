"""Which columns a write takes, and that a read has its own."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from metaq_spark.backends.metaq.sink import SINK_COLUMNS
from metaq_spark.columns.row_layout import message_layout
from metaq_spark.errors import ColumnError
from metaq_spark.sink.columns import SinkColumns, find_sink_columns


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "topic", "places"),
    [
        (schema(value=BinaryType()), "t", SinkColumns(0)),
        (schema(Value=StringType()), "t", SinkColumns(0)),
        (schema(topic=StringType(), value=StringType()), None, SinkColumns(1, topic=0)),
        (
            schema(
                key=LongType(), partition=IntegerType(), topic=StringType(), attribute=StringType(), value=BinaryType()
            ),
            "t",
            SinkColumns(4, topic=2, partition=1, key=0, others={"attribute": 3}),
        ),
        (schema(value=BinaryType(), key=BinaryType()), "t", SinkColumns(0, key=1)),
        (schema(value=BinaryType(), key=IntegerType()), "t", SinkColumns(0, key=1)),
    ],
)
def test_columns_that_are_taken(columns: StructType, topic: str | None, places: SinkColumns) -> None:
    assert find_sink_columns(columns, topic, SINK_COLUMNS) == places


@pytest.mark.parametrize(
    ("columns", "topic", "words"),
    [
        (schema(payload=BinaryType()), "t", ["column payload", "no such column", "value (binary or string)", "key ("]),
        (schema(value=IntegerType()), "t", ["column value", "type int is not allowed", "binary or string"]),
        (schema(value=BinaryType(), attribute=BinaryType()), "t", ["column attribute", "type binary", "string"]),
        (schema(value=BinaryType(), partition=LongType()), "t", ["column partition", "type bigint", "must be int"]),
        (schema(value=BinaryType(), partition=ShortType()), "t", ["column partition", "type smallint"]),
        (schema(value=BinaryType(), key=TimestampType()), "t", ["column key", "binary or string or int or bigint"]),
        (schema(value=BinaryType(), topic=IntegerType()), "t", ["column topic", "type int", "string"]),
        (schema(topic=StringType()), None, ["column value", "required"]),
        (schema(), "t", ["column value", "required"]),
        (schema(value=BinaryType()), None, ["column topic", "option topic"]),
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
    message_layout().check(schema(**READ))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (schema(value=StringType()), ["column value", "type string at place 1", "leave .schema(...) out"]),
        (schema(**READ | {"value": StringType()}), ["column value", "type string at place 8"]),
        (schema(**READ, more=StringType()), ["column more", "at place 9"]),
        (schema(**dict(list(READ.items())[:-1])), ["column value", "missing from the schema given"]),
        (schema(**dict(reversed(READ.items()))), ["column value", "type binary at place 1"]),
    ],
)
def test_any_other_schema_is_refused(columns: StructType, words: list[str]) -> None:
    with pytest.raises(ColumnError) as caught:
        message_layout().check(columns)
    for word in words:
        assert word in str(caught.value)
