"""JSON payloads and attributes as maps: a table of what goes in and what comes out."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from examples import examples, in_one_test
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq_spark.columns.json_values import JsonColumn
from metaq_spark.columns.row_layout import ATTRIBUTE_MAP
from metaq_spark.columns.text import attribute_maps, parse_pairs
from metaq_spark.columns.value_schema import parse_value_schema
from metaq_spark.spark_version import arrow_type


def parsed(kind: str, *payloads: bytes) -> list[object]:
    found = JsonColumn(parse_value_schema(kind)).parse(pa.array(payloads, pa.binary()))
    assert found.type == arrow_type(parse_value_schema(kind))
    found.validate(full=True)
    return found.to_pylist()


def one(kind: str, text: str) -> object:
    """What becomes of a single value of type ``kind``."""
    (row,) = parsed(f"x {kind}", b'{"x": %s}' % text.encode())
    assert row is not None
    return row["x"]


UTC = dt.UTC


@in_one_test(
    "kind, text, value",
    [
        ("BOOLEAN", "true", True), ("BOOLEAN", "1", None), ("BOOLEAN", '"true"', None),
        ("STRING", '"é\\u00e9\\ud83d\\ude00"', "éé\U0001f600"), ("STRING", '"\\ud800x"', "\ufffdx"),
        ("STRING", "5", None), ("STRING", '{"a": 1}', None), ("STRING", '""', ""),
        ("TINYINT", "127", 127), ("TINYINT", "128", None), ("TINYINT", "-128", -128), ("TINYINT", "-129", None),
        ("SMALLINT", "32767", 32767), ("SMALLINT", "32768", None),
        ("INT", "2147483647", 2**31 - 1), ("INT", "2147483648", None), ("INT", "1.0", None), ("INT", "1e2", None),
        ("INT", '"1"', None), ("INT", "true", None), ("INT", "null", None),
        ("BIGINT", "-9223372036854775808", -(2**63)), ("BIGINT", "9223372036854775808", None),
        ("DOUBLE", "1", 1.0), ("DOUBLE", "-1.5e3", -1500.0), ("DOUBLE", "1e400", None), ("DOUBLE", "true", None),
        ("DOUBLE", "1" + "0" * 400, None), ("DOUBLE", '"NaN"', None),
        ("FLOAT", "0.5", 0.5), ("FLOAT", "1e39", None), ("FLOAT", "3.4028234663852886e38", 3.4028234663852886e38),
        ("DECIMAL(5,2)", "123.45", Decimal("123.45")), ("DECIMAL(5,2)", "0.005", Decimal("0.01")),
        ("DECIMAL(5,2)", "999.995", None), ("DECIMAL(5,2)", "1000", None), ("DECIMAL(5,2)", "-7", Decimal("-7.00")),
        ("DECIMAL(38,0)", "9" * 38, Decimal("9" * 38)), ("DECIMAL(38,0)", "9" * 39, None),
        ("DECIMAL(5,2)", "1e999999999", None), ("DECIMAL(5,2)", '"1"', None),
        ("BINARY", '"aGk="', b"hi"), ("BINARY", '"aGk"', None), ("BINARY", '"a\\u00e9=="', None), ("BINARY", "5", None),
        ("DATE", '"2024-02-29"', dt.date(2024, 2, 29)), ("DATE", '"2023-02-29"', None), ("DATE", '"20240229"', None),
        ("DATE", "19000", None),
        ("TIMESTAMP", '"2024-01-01T12:00:00+02:00"', dt.datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("TIMESTAMP", '"2024-01-01T12:00:00.123456Z"', dt.datetime(2024, 1, 1, 12, 0, 0, 123456, UTC)),
        ("TIMESTAMP", '"2024-01-01T12:00:00"', None), ("TIMESTAMP", '"0001-01-01T00:00:00+14:00"', None),
        ("TIMESTAMP", "1700000000", None), ("TIMESTAMP", '"soon"', None),
        ("TIMESTAMP_NTZ", '"2024-01-01 12:00:00"', dt.datetime(2024, 1, 1, 12)),
        ("TIMESTAMP_NTZ", '"2024-01-01T12:00:00Z"', None),
        ("ARRAY<INT>", "[1, null, \"x\", 4]", [1, None, None, 4]), ("ARRAY<INT>", "{}", None), ("ARRAY<INT>", "[]", []),
        ("MAP<STRING,INT>", '{"a": 1, "b": "x", "a": 3}', [("a", 3), ("b", None)]), ("MAP<STRING,INT>", "[]", None),
        ("STRUCT<a:INT,b:STRING>", '{"b": "y", "c": 1}', {"a": None, "b": "y"}), ("STRUCT<a:INT>", "7", None),
        ("STRUCT<a:ARRAY<STRUCT<b:DECIMAL(3,1)>>>", '{"a": [{"b": 1.25}]}', {"a": [{"b": Decimal("1.3")}]}),
    ],
)  # fmt: skip
def test_what_fits_a_type_and_what_is_null(kind: str, text: str, value: object) -> None:
    found = one(kind, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "payload",
    [
        b"", b" ", b"{", b"{} x", b"nul", b"[1]", b"5", b'"text"', b"null", b"{'a': 1}", b'{"a": NaN}',
        b'{"a": Infinity}',
        b"\xff\xfe", b'{"a": "\xff"}', b'\xef\xbb\xbf{"a": 1}', b"[" * 100_000, b'{"a": ' + b"1" * 5000 + b"}",
        b'{"a": 1}\x00', '{"a": 1}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_payloads_that_are_no_json_object_are_null_and_disturb_nobody(payload: bytes) -> None:
    assert parsed("a BIGINT", b'{"a": 1}', payload, b'{"a": 2}') == [{"a": 1}, None, {"a": 2}]


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        ("ARRAY<INT>", b"[1, 2]", [1, 2]),
        ("MAP<STRING,STRING>", b'{"a": "b"}', [("a", "b")]),
        ("a INT", b" {} ", {"a": None}),
    ],
)
def test_the_whole_payload_may_be_an_array_or_a_map(kind: str, payload: bytes, value: object) -> None:
    assert parsed(kind, payload) == [value]


def test_a_column_without_rows_or_without_json_keeps_its_type() -> None:
    assert parsed("a INT, b ARRAY<STRING>") == []
    assert parsed("a INT, b ARRAY<STRING>", b"x", b"y") == [None, None]


tree = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from("abcdefgh"), tree))
@settings(max_examples=examples(150))
def test_no_json_breaks_a_read(document: dict[str, object]) -> None:
    nested = "d ARRAY<STRING>, e MAP<STRING,DECIMAL(20,3)>, f STRUCT<a:INT>"
    kind = f"a BIGINT, b DOUBLE, c STRING, {nested}, g TIMESTAMP, h DATE"
    (row,) = parsed(kind, json.dumps(document).encode())
    if any(isinstance(part, float) and not math.isfinite(part) for part in document.values()):
        assert row is None
    elif row is not None and type(document.get("a")) is int and -(2**63) <= document["a"] < 2**63:
        assert row["a"] == document["a"]


@pytest.mark.parametrize(
    ("attribute", "pairs"),
    [
        ("", {}),
        ("k=v", {"k": "v"}),
        ("k=v;k2=v2", {"k": "v", "k2": "v2"}),
        ("k=v;", {"k": "v"}),
        (";;k=v;;", {"k": "v"}),
        ("k", {"k": None}),
        ("k=", {"k": ""}),
        ("=v", {"": "v"}),
        ("=", {"": ""}),
        ("k=a=b", {"k": "a=b"}),
        ("k=1;k=2", {"k": "2"}),
        ("k=1;k", {"k": None}),
        (" k = v ; k2", {" k ": " v ", " k2": None}),
        ("ключ=é", {"ключ": "é"}),
    ],
)
def test_attributes_as_pairs(attribute: str, pairs: dict[str, str | None]) -> None:
    assert parse_pairs(attribute) == pairs


def test_a_column_of_attributes_as_maps() -> None:
    column = pa.array(["a=1", None, "", "a=1", "b"], pa.string())
    maps = attribute_maps(column)
    assert maps.type == arrow_type(ATTRIBUTE_MAP)
    maps.validate(full=True)
    assert maps.to_pylist() == [[("a", "1")], None, [], [("a", "1")], [("b", None)]]
    assert attribute_maps(pa.nulls(2, pa.string())).to_pylist() == [None, None]
    assert attribute_maps(column.slice(1, 1)).to_pylist() == [None]
