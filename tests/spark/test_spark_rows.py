"""What rows a read gives, inside Spark: chosen columns, forms of values and attributes, types, filters, damage."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pytest
from fix_broker import RunningBroker
from fix_spark import Topic
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType

from metaq_spark.columns.row_layout import COLUMN_TYPES
from metaq_spark.columns.value_schema import parse_value_schema, spell_type

pytestmark = [pytest.mark.spark, pytest.mark.process]

SCHEMA = (
    "id BIGINT, `odd name` STRING, f FLOAT, d DOUBLE, n DECIMAL(20,3), ok BOOLEAN, small TINYINT, raw BINARY, "
    "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, counts MAP<STRING, INT>, "
    "inner STRUCT<a: INT, b: ARRAY<STRUCT<c: SMALLINT>>>"
)
DOCUMENT = (
    '{"id": 7, "odd name": "é", "f": 0.5, "d": 1e10, "n": 1.2345, "ok": true, "small": 300, "raw": "aGk=", '
    '"day": "2024-02-29", "at": "2024-01-01T00:00:00+01:00", "local": "2024-01-01T00:00:00", "tags": ["x", null], '
    '"counts": {"a": 1}, "inner": {"a": 1, "b": [{"c": 2}, {}]}}'
)


def test_chosen_columns_come_in_their_order_in_batch_and_stream(topic: Topic, tmp_path: Path) -> None:
    topic.put("a", "bb", "ccc")
    everything = topic.read().orderBy("offset").collect()
    for chosen in ("value", "offset", " Partition , timestamp,topic,value", "attribute,message_id,broker_id"):
        names = [name.strip().lower() for name in chosen.split(",")]
        found = topic.read(columns=chosen)
        assert [(field.name, field.dataType) for field in found.schema] == [
            (name, COLUMN_TYPES[name]) for name in names
        ]
        assert sorted(map(tuple, found.collect())) == sorted(tuple(row[name] for name in names) for row in everything)
    topic.drain(topic.stream(columns="offset,value"), tmp_path)
    stored = topic.spark.read.parquet(str(tmp_path / "rows"))
    assert stored.columns == ["offset", "value"]
    assert [row.value.decode() for row in stored.orderBy("offset").collect()] == ["a", "bb", "ccc"]


def test_wrong_options_are_refused_when_the_read_is_declared(topic: Topic) -> None:
    for declare in (topic.read, topic.stream):
        with pytest.raises(PySparkException) as caught:
            declare(columns="value,key")
        assert "option columns: 'value,key': there is no column key; a read has topic, broker_id" in str(caught.value)


def test_a_schema_of_the_user_s_own_must_be_that_of_the_options(topic: Topic) -> None:
    topic.put("5")
    reader = topic.spark.read.format("metaq").options(brokers=topic.servers, subscribe=topic.name, columns="value")
    assert reader.schema("value BINARY").load().count() == 1
    with pytest.raises(PySparkException, match="this read has the columns `value` binary"):
        reader.schema("value STRING").load().count()


def test_json_text_and_maps(topic: Topic, tmp_path: Path) -> None:
    rows = [(DOCUMENT, "a=1;b"), ("{not json", ""), ('{"id": "x"}', None), ("[]", "a=2;a=3")]
    topic.write(topic.frame(rows, "value string, attribute string"))
    options = {
        "valueFormat": "json",
        "valueSchema": SCHEMA,
        "attributeFormat": "map",
        "columns": "value,attribute,offset",
    }
    found = topic.read(**options)
    kind: DataType = parse_value_schema(SCHEMA)
    assert (
        found.schema["value"].dataType
        == kind
        == topic.spark.createDataFrame([], f"v {spell_type(kind)}").schema[0].dataType
    )
    document, no_json, other, no_object = found.orderBy("offset").collect()
    value = document.value.asDict(recursive=True)
    assert value["odd name"] == "é"
    assert (value["id"], value["f"], value["d"], value["n"]) == (7, 0.5, 1e10, Decimal("1.235"))
    assert (value["ok"], value["small"], value["raw"]) == (True, None, bytearray(b"hi"))
    assert (value["day"], value["local"]) == (dt.date(2024, 2, 29), dt.datetime(2024, 1, 1))
    assert (value["tags"], value["counts"]) == (["x", None], {"a": 1})
    assert value["inner"] == {"a": 1, "b": [{"c": 2}, {"c": None}]}
    assert found.where("value.id = 7").select(sf.unix_timestamp("value.at")).head()[0] == 1704063600
    assert (no_json.value, no_object.value) == (None, None)
    assert set(other.value.asDict().values()) == {None}
    assert [row.attribute for row in (document, no_json, other, no_object)] == [
        {"a": "1", "b": None},
        {},
        None,
        {"a": "3"},
    ]
    assert found.where("attribute['a'] = '3'").count() == 1

    text = topic.read(valueFormat="string", columns="value,offset").orderBy("offset").collect()
    assert [row.value for row in text] == [value for value, _ in rows]
    topic.drain(topic.stream(**options), tmp_path)
    assert topic.spark.read.parquet(str(tmp_path / "rows")).where("value.inner.b[0].c = 2").count() == 1


def test_spark_parses_schemas_as_we_do(topic: Topic) -> None:
    for text in (
        SCHEMA,
        "a DEC(5), b NUMERIC(4,4), c REAL, d LONG, e BYTE, f SHORT",
        "`x``y` INT, `数` MAP<STRING,ARRAY<INT>>",
    ):
        assert parse_value_schema(text) == topic.spark.createDataFrame([], f"v STRUCT<{text}>").schema[0].dataType


def test_message_types(topic: Topic) -> None:
    rows = [(f"{n}", ["paid", "open", None, "paid late"][n % 4]) for n in range(4000)]
    topic.write(topic.frame(rows, "value string, attribute string"))
    paid = topic.read(messageTypes="paid")
    assert {row.attribute for row in paid.select("attribute").distinct().collect()} == {"paid"}
    assert paid.count() == 1000
    assert topic.read(messageTypes="paid,open", columns="value").count() == 2000
    assert topic.read(messageTypes="nobody").count() == 0


@contextmanager
def pushdown(topic: Topic) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    topic.spark.conf.set(name, "true")
    try:
        yield
    finally:
        topic.spark.conf.unset(name)


@pytest.mark.since("4.1")
def test_pushed_filters_change_nothing_but_the_work(topic: Topic) -> None:
    rows = [(f"{n}", ["paid", "open", None, "paid late"][n % 4], n % 2) for n in range(1000)]
    topic.write(topic.frame(rows, "value string, attribute string, partition int"))
    middle = topic.read().agg(sf.expr("percentile_approx(timestamp, 0.5)")).head()[0]
    conditions = [
        "attribute IN ('paid', 'open') AND partition = 0",
        "attribute = 'paid late'",
        "offset >= 5000 AND offset < 9000 OR attribute = 'open'",
        "offset IN (0, 5000)",
        f"timestamp > '{middle}' AND offset > 600",
        f"timestamp <= '{middle}'",
        f"topic = '{topic.name}' AND broker_id = 3 AND partition <=> 1",
        "NOT attribute = 'paid' AND length(value) > 2",
    ]
    plain = topic.read()
    want = [sorted(map(str, plain.where(condition).collect())) for condition in conditions]
    assert sum(map(len, want)) > 1000
    with pytest.raises(PySparkException, match="filterPushdown"):
        topic.read(pushFilters="true").where("offset = 0").collect()
    with pushdown(topic):
        pushing = topic.read(pushFilters="true")
        got = [sorted(map(str, pushing.where(condition).collect())) for condition in conditions]
        assert pushing.count() == 1000
        left = pushing.where("attribute = 'paid' AND partition = 0 AND offset >= 0")._jdf.queryExecution()
        conditions_left = left.executedPlan().toString().split("BatchScan")[0]
        assert ">= 0" in conditions_left
        assert "= paid" not in conditions_left
    assert got == want


def test_damage_in_batch_and_stream(topic: Topic, start_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--partitions", "1")
    own = Topic(topic.spark, "orders", str(broker.address))
    own.put(*[f"{n:03}" for n in range(500)])
    (segment,) = (tmp_path / "data").glob("**/orders-0/*.meta")
    with open(segment, "r+b") as file:
        file.seek(23 * 250 + 21)
        file.write(b"!")
    with pytest.raises(PySparkException, match=r"corrupt frame in orders/0-0 at offset 5750"):
        own.values()
    rest = [f"{n:03}" for n in range(500) if n != 250]
    assert own.values(onCorrupt="skip") == rest
    own.drain(own.stream(onCorrupt="deadletter", deadLetterTopic="dead"), tmp_path)
    assert topic.spark.read.parquet(str(tmp_path / "rows")).count() == 499
    (letter,) = own.named("dead").read(attributeFormat="map").collect()
    assert letter.attribute["start"] == "5750"
    assert bytes(letter.value)[20:] == b"2!0"
