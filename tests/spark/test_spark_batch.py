"""Batch reads and writes inside Spark, against a broker process."""

from __future__ import annotations

import datetime as dt
import json
import random
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from chispa import assert_df_equality
from examples import rarely
from fix_spark import Topic
from pyspark.sql import functions as sf

pytestmark = [pytest.mark.spark, pytest.mark.process]

COLUMNS = [
    ("topic", "string"),
    ("broker_id", "int"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("message_id", "bigint"),
    ("timestamp", "timestamp"),
    ("attribute", "string"),
    ("value", "binary"),
]


def arbitrary_messages() -> list[tuple[bytearray, str | None, int]]:
    """Payloads from nothing to 1 MiB, of any bytes, with and without attributes, over ten partitions."""
    chance = random.Random(8)
    sizes = [0, 1, 2, 19, 20, 21, 100, 1000, 65_535, 65_536, 65_537, 300_000, 1 << 20] + [chance.randrange(400)] * 50
    sizes += [chance.randrange(400) for _ in range(1500)]
    attributes = [None, "", "type_a", "é", "日本語 text", "with\r\nline end", "\U0001f600", "\x00"]
    special = [b"\r\n", b"value 3 1\r\nabc\r\n", b"\x00" * 40, b"\xff" * 40, "ümlaut\r\n".encode()]
    payloads = [chance.randbytes(size) for size in sizes] + special
    return [(bytearray(p), attributes[n % 8], n % 10) for n, p in enumerate(payloads)]


def test_a_write_that_begins_in_another_thread(topic: Topic) -> None:
    """Spark looks for a sink written in Python in the thread's active session."""
    rows = topic.spark.range(5).selectExpr("cast(id as string) as value")
    there = topic.named("from-a-thread")

    def write() -> None:
        topic.spark.createDataFrame([], "a int")
        there.write(rows)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert sorted(row.value for row in there.read().collect()) == [b"0", b"1", b"2", b"3", b"4"]


def test_any_bytes_come_back_as_they_went_in(topic: Topic) -> None:
    ten = topic.named("ten-partitions")
    messages = topic.spark.createDataFrame(arbitrary_messages(), "value binary, attribute string, partition int")
    ten.write(messages)
    found = ten.read()
    assert [(field.name, field.dataType.simpleString()) for field in found.schema] == COLUMNS
    assert all(field.nullable for field in found.schema)
    assert_df_equality(
        found.select("value", "attribute", "partition"), messages, ignore_row_order=True, ignore_nullable=True
    )
    places = found.select("topic", "broker_id", "partition", "offset", "message_id", "timestamp").collect()
    assert {(row.topic, row.broker_id) for row in places} == {("ten-partitions", 3)}
    now = dt.datetime.now()
    for row in places:
        assert abs((now - row.timestamp).total_seconds()) < 24 * 3600
        assert row.message_id > 0
    for partition in range(10):
        inside = [row for row in places if row.partition == partition]
        assert sorted(row.offset for row in inside)[0] == 0
        assert [row.offset for row in inside] == sorted({row.offset for row in inside})


def test_offsets_are_where_the_messages_lie(topic: Topic) -> None:
    topic.put("a", "bb", "", "dddd")
    rows = topic.read().orderBy("offset").select("offset", sf.length("value").alias("size")).collect()
    assert [(row.offset, row.size) for row in rows] == [(0, 1), (21, 2), (43, 0), (63, 4)]


def test_a_read_between_offsets(topic: Topic) -> None:
    topic.put("a", "bb", "ccc")
    topic.put("other", partition=1)
    start = json.dumps({topic.name: {"3-0": 21, "3-1": -1}})
    end = json.dumps({topic.name: {"3-0": 43, "3-1": -1}})
    assert topic.values(startingOffsets=start) == ["bb", "ccc"]
    assert topic.values(startingOffsets=start, endingOffsets=end) == ["bb"]
    assert topic.values(startingOffsets=end) == ["ccc"]


def test_several_topics_in_one_read_and_in_one_write(topic: Topic) -> None:
    other = topic.named(topic.name + "-2")
    rows = [("x", topic.name), ("y", other.name), ("z", topic.name)]
    mixed = topic.frame(rows, "value string, topic string")
    mixed.write.format("metaq").mode("append").option("brokers", topic.servers).save()
    assert (topic.values(), other.values()) == (["x", "z"], ["y"])
    both = topic.read(subscribe=f"{topic.name},{other.name}")
    assert_df_equality(both.select(both.value.cast("string").alias("value"), "topic"), mixed, ignore_row_order=True)


def test_rows_keep_their_order_within_a_partition(topic: Topic) -> None:
    rows = [(f"{n:06}", n * 7 % 2) for n in range(30_000)]
    topic.write(topic.frame(rows, "value string, partition int"), blockBytes="4k")
    for partition in (0, 1):
        stored = topic.read().where(f"partition = {partition}").orderBy("offset").select("value").collect()
        assert [row.value.decode() for row in stored] == [value for value, place in rows if place == partition]


@pytest.mark.parametrize(
    ("kind", "keys", "raw"),
    [
        ("string", ["a", "é", ""], ["a", "é", ""]),
        *rarely(
            ("binary", [bytearray(b"a"), bytearray("é".encode()), bytearray()], ["a", "é", ""]),
            ("int", [1, -1, 2**31 - 1], ["1", "-1", "2147483647"]),
            ("bigint", [1, -1, 2**40], ["1", "-1", "1099511627776"]),
        ),
    ],
)
def test_a_key_finds_the_same_partition_in_every_write_and_type(
    topic: Topic, kind: str, keys: list[object], raw: list[str]
) -> None:
    ten = topic.named("ten-partitions")
    mark = f"{kind} {topic.name}"
    rows = [(f"{mark} {text}", key) for key, text in zip(keys, raw, strict=True)]
    for _ in range(2):
        ten.write(topic.frame(rows, f"value string, key {kind}"))
    found = ten.read().where(sf.col("value").cast("string").startswith(mark)).select("value", "partition").collect()
    places = {(row.value.decode(), row.partition) for row in found}
    assert places == {(f"{mark} {text}", zlib.crc32(text.encode()) % 10) for text in raw}
    assert len(found) == 2 * len(rows)


def test_columns_can_be_chosen_and_counted(topic: Topic) -> None:
    topic.put(*[str(n) for n in range(100)])
    assert topic.read().count() == 100
    assert topic.read().where("value = cast('7' as binary)").select("offset").count() == 1
    assert topic.read().agg(sf.sum(sf.length("value"))).first()[0] == 190


def test_sql_reads_and_writes(topic: Topic) -> None:
    topic.put("from", "sql")
    options = f"brokers '{topic.servers}', subscribe '{topic.name}'"
    topic.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW story USING metaq OPTIONS ({options})")
    found = topic.spark.sql("SELECT CAST(value AS STRING) AS text FROM story ORDER BY offset")
    assert [row.text for row in found.collect()] == ["from", "sql"]


@pytest.mark.long
def test_the_first_rows_of_many_do_not_cost_them_all(topic: Topic) -> None:
    topic.put(*[f"{n:05}" for n in range(20_000)])
    assert [row.value.decode() for row in topic.read().limit(2).collect()] == ["00000", "00001"]
    topic.put("one", partition=1)
    assert topic.read().count() == 20_001
