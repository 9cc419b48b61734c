"""Payloads that are not JSON of their type: what each mode makes of them, in both formats and both decoders."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from metaq.formats.frames import encode_frame
from metaq.model import Partition, TopicPartition
from metaq_spark.columns.decode import RunDecoder
from metaq_spark.columns.engine import ColumnEngine
from metaq_spark.columns.json_rules import DROP, FAIL, PERMISSIVE, JsonRules
from metaq_spark.columns.json_values import JsonColumn, Malformed
from metaq_spark.columns.rocketmq.batches import RecordBatchMaker
from metaq_spark.columns.row_layout import message_layout
from metaq_spark.columns.value_schema import parse_value_schema
from metaq_spark.errors import MalformedValue
from metaq_spark.spark_version import arrow_type

SOURCE = TopicPartition("orders", Partition(0, 0))
GOOD, MISFIT, TORN, OTHER = b'{"id": 1, "tags": ["a"]}', b'{"id": "x", "tags": ["b", 2]}', b'{"id": 2', b"[1]"
PAYLOADS = (GOOD, MISFIT, TORN, OTHER)
KIND = "id INT, tags ARRAY<STRING>"


def parsed(kind: str, rules: JsonRules, *payloads: bytes) -> tuple[list[Any], list[Malformed]]:
    column, malformed = JsonColumn(parse_value_schema(kind), rules).parse_noticing(pa.array(payloads, pa.binary()))
    column.validate(full=True)
    return column.to_pylist(), malformed


def test_permissive_is_what_a_read_does_by_default() -> None:
    rows = [{"id": 1, "tags": ["a"]}, {"id": None, "tags": ["b", None]}, None, None]
    assert parsed(KIND, JsonRules(), *PAYLOADS) == (rows, [])


def test_the_corrupt_field_has_the_text_of_what_does_not_fit() -> None:
    rows, malformed = parsed(f"_corrupt_record STRING, {KIND}", JsonRules(), *PAYLOADS, b"\xff")
    assert rows == [
        {"_corrupt_record": None, "id": 1, "tags": ["a"]},
        {"_corrupt_record": MISFIT.decode(), "id": None, "tags": ["b", None]},
        {"_corrupt_record": TORN.decode(), "id": None, "tags": None},
        {"_corrupt_record": "[1]", "id": None, "tags": None},
        {"_corrupt_record": "\ufffd", "id": None, "tags": None},
    ]
    assert [one.row for one in malformed] == [1, 2, 3, 4]


def test_the_corrupt_field_is_not_read_from_json_and_may_have_another_name() -> None:
    rows, _ = parsed("id INT, bad STRING", JsonRules(PERMISSIVE, "bad"), b'{"id": 1, "bad": "x"}', b'{"id": 1.5}')
    assert rows == [{"id": 1, "bad": None}, {"id": None, "bad": '{"id": 1.5}'}]


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        (KIND, MISFIT, 'its field id is "x", which is no int'),
        (KIND, b'{"tags": ["a", 2]}', "its field tags[] is 2, which is no string"),
        (KIND, TORN, "it is not JSON: Expecting ',' delimiter"),
        (KIND, b"", "it is not JSON: Expecting value"),
        (KIND, OTHER, "it is [1], which is no struct<id:int,tags:array<string>>"),
        (KIND, b"\xff", "it is not JSON: 'utf-8' codec"),
        ("a STRUCT<b: DATE>", b'{"a": {"b": "today"}}', 'its field a.b is "today", which is no date'),
        ("a MAP<STRING, INT>", b'{"a": {"x": true}}', "its field a{} is true, which is no int"),
        ("a STRUCT<b: INT>", b'{"a": 5}', "its field a is 5, which is no struct<b:int>"),
        ("a DECIMAL(3,1)", b'{"a": 100.5}', "which is no decimal(3,1)"),
        ("ARRAY<INT>", b"{}", "it is {}, which is no array<int>"),
        ("a INT", b"[" * 100_000, "it is not JSON"),
        ("a STRING", b'{"a": [%s]}' % b", ".join([b"1"] * 99), "its field a is [1, 1, "),
        ("a INT", rb'{"a": "\ud800"}', 'its field a is "\ufffd", which is no int'),  # Spark encodes it
    ],
)
def test_why_a_payload_is_malformed(kind: str, payload: bytes, reason: str) -> None:
    _, (found,) = parsed(kind, JsonRules(FAIL), payload)
    assert reason in found.reason


@pytest.mark.parametrize("payload", [b"{}", b'{"id": null, "tags": [null], "more": 5}', b"null", b' {"id": 1} \n'])
def test_what_is_missing_null_or_not_asked_for_is_not_malformed(payload: bytes) -> None:
    assert parsed(KIND, JsonRules(FAIL), payload)[1] == []


def read(rules: JsonRules, columns: tuple[str, ...], plain: bool) -> list[dict[str, Any]]:
    layout = message_layout(columns, value_type=parse_value_schema(KIND), json=rules)
    decoder = RunDecoder(SOURCE, 3, 1 << 20, ColumnEngine(1 << 20 if plain else 0), layout)
    run = b"".join(encode_frame(number, 0, payload) for number, payload in enumerate(PAYLOADS))
    return [row for batch in (*decoder.decode(run, 1000), *decoder.flush()) for row in batch.to_pylist()]


@pytest.mark.parametrize("plain", [True, False])
def test_messages_that_are_left_out_and_a_read_that_fails(plain: bool) -> None:
    columns = ("topic", "value", "message_id")
    assert read(JsonRules(DROP), columns, plain) == [
        {"topic": "orders", "value": {"id": 1, "tags": ["a"]}, "message_id": 0}
    ]
    with pytest.raises(MalformedValue) as caught:
        read(JsonRules(FAIL), columns, plain)
    second = 1000 + len(encode_frame(0, 0, GOOD))
    assert str(caught.value) == (
        f'orders/0-0: the payload at offset {second} does not fit valueSchema: its field id is "x", which is no int. '
        "With the option mode = permissive, what does not fit is null; with dropmalformed, such messages are left out"
    )
    assert len(read(JsonRules(FAIL), ("message_id",), plain)) == len(PAYLOADS)  # nothing is parsed


def test_records_of_rocketmq() -> None:
    kind, queue = parse_value_schema(KIND), TopicPartition("orders", Partition("broker-a", 1))
    schema = pa.schema([("value", arrow_type(kind)), ("queue_id", pa.int32())])
    raw = {"value": pa.array(PAYLOADS, pa.binary()), "queue_offset": pa.array([7, 8, 9, 10], pa.int64())}
    batch = RecordBatchMaker(queue, schema, kind, json=JsonRules(DROP)).batch(4, raw)
    assert batch is not None
    assert batch.to_pylist() == [{"value": {"id": 1, "tags": ["a"]}, "queue_id": 1}]
    with pytest.raises(MalformedValue, match=r"^orders/broker-a:1: the payload at offset 8 does not fit"):
        RecordBatchMaker(queue, schema, kind, json=JsonRules(FAIL)).batch(4, raw)
    torn = {name: column.slice(2) for name, column in raw.items()}
    assert RecordBatchMaker(queue, schema, kind, json=JsonRules(DROP)).batch(2, torn) is None
