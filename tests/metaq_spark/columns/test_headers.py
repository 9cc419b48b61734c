"""Headers and keys in Kafka's form: from attributes and properties, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from metaq.model import Partition, TopicPartition
from metaq_spark.backends.metaq.sink import SINK_COLUMNS as OF_METAQ
from metaq_spark.backends.rocketmq.sink import SINK_COLUMNS as OF_ROCKETMQ
from metaq_spark.columns import headers
from metaq_spark.columns.decode import RunDecoder
from metaq_spark.columns.engine import ColumnEngine
from metaq_spark.columns.plain import encode_rows
from metaq_spark.columns.rocketmq.batches import RecordBatchMaker
from metaq_spark.columns.row_layout import HEADERS, message_layout
from metaq_spark.errors import ColumnError, RowError
from metaq_spark.sink.columns import find_sink_columns
from metaq_spark.spark_version import arrow_type

TYPE = arrow_type(HEADERS)


def header(key: str | None, value: bytes | None) -> dict[str, Any]:
    return {"key": key, "value": value}


@pytest.mark.parametrize("plain", [True, False])
def test_the_pairs_of_an_attribute(plain: bool) -> None:
    layout = message_layout(("headers", "value"))
    decoder = RunDecoder(
        TopicPartition("t", Partition(0, 0)), 2, 1 << 20, ColumnEngine(1 << 20 if plain else 0), layout
    )
    run = b"".join(encode_rows([b"x"] * 4, ["a=1;b;é=ü", None, "", "a=1;b;é=ü"]))
    rows = [row for batch in (*decoder.decode(run, 0), *decoder.flush()) for row in batch.to_pylist()]
    pairs = [header("a", b"1"), header("b", None), header("é", "ü".encode())]
    assert [row["headers"] for row in rows] == [pairs, None, [], pairs]
    assert "headers" not in message_layout().types


def test_the_properties_and_keys_of_rocketmq() -> None:
    schema = pa.schema([("key", pa.binary()), ("headers", TYPE)])
    maker = RecordBatchMaker(TopicPartition("t", Partition("broker-a", 0)), schema, None)
    assert maker.needed == {"keys", "properties"}
    properties = pa.array(
        [[("color", "red"), ("KEYS", "k1"), ("UNIQ_KEY", "00")], [("TAGS", "t")]], pa.map_(pa.string(), pa.string())
    )
    batch = maker.batch(2, {"keys": pa.array(["k1", None]), "properties": properties})
    assert batch is not None
    assert batch.to_pylist() == [
        {"key": b"k1", "headers": [header("color", b"red")]},
        {"key": None, "headers": None},
    ]


ROWS = [[header("a", b"1"), header("b", None)], None, [], [header("a", "ü".encode())]]


def test_headers_become_attributes_and_properties() -> None:
    column = pa.array(ROWS, TYPE)
    assert headers.attributes_of_headers(column, "x", 0).to_pylist() == ["a=1;b", None, None, "a=ü"]
    assert headers.attributes_of_headers(column.slice(3), "x", 0).to_pylist() == ["a=ü"]
    assert headers.properties_of_headers(column, "x", 0).to_pylist() == [
        [("a", "1"), ("b", None)], [], [], [("a", "ü")],
    ]  # fmt: skip


@pytest.mark.parametrize("bad", [header("a;b", b"1"), header("a=b", b"1"), header("a", b"1;2"), header(None, b"1")])
def test_what_cannot_be_a_pair_of_an_attribute(bad: dict[str, Any]) -> None:
    with pytest.raises(RowError, match=r"^row 12 of the input: its headers: .* cannot be a pair of an attribute"):
        headers.attributes_of_headers(pa.array([[], [bad]], TYPE), "the input", 10)


@pytest.mark.parametrize("convert", [headers.attributes_of_headers, headers.properties_of_headers])
def test_bytes_that_are_no_text(convert: Any) -> None:
    with pytest.raises(RowError, match=r"^row 1 of the input: its headers: the value of 'a' is not UTF-8"):
        convert(pa.array([[header("a", b"\xff")]], TYPE), "the input", 0)


@pytest.mark.parametrize(("types", "other"), [(OF_METAQ, "attribute"), (OF_ROCKETMQ, "properties")])
def test_the_column_of_a_write(types: Any, other: str) -> None:
    value = StructField("value", StringType())
    found = find_sink_columns(StructType([value, StructField("headers", HEADERS)]), "t", types)
    assert found.others == {"headers": 1}
    with pytest.raises(ColumnError, match=r"must be array<struct<key:string,value:binary>>"):
        find_sink_columns(StructType([value, StructField("headers", ArrayType(StringType()))]), "t", types)
    also = StructField(
        other, types[other].types[0]() if other == "attribute" else types[other].types[0](*[StringType()] * 2)
    )
    with pytest.raises(ColumnError, match=f"column headers: it says the same as column {other}"):
        find_sink_columns(StructType([value, StructField("headers", HEADERS), also]), "t", types)
