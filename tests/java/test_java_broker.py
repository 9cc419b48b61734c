"""The connector against a Java MetaQ broker; runs only where ``METAQ_JAVA_BROKER`` names one (docs/testing.md)."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from chispa import assert_df_equality
from fix_spark import JavaTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

pytestmark = pytest.mark.spark

READABLE_AT_ONCE = 500_000
"""Larger messages are readable only when a smaller one follows, if the Java broker acknowledges after fsync."""


def arbitrary(topic: JavaTopic) -> DataFrame:
    """Payloads of many sizes, of any bytes, with and without attributes, in all partitions."""
    chance = random.Random(8)
    sizes = [0, 1, 19, 20, 21, 65_536, 300_000, READABLE_AT_ONCE] + [chance.randrange(400) for _ in range(800)]
    attributes = [None, "", "type_a", "é", "日本語 text", "with\r\nline end"]
    rows = [
        (bytearray(chance.randbytes(size)), attributes[n % 6], topic.indexes[n % len(topic.indexes)])
        for n, size in enumerate(sizes)
    ]
    return topic.spark.createDataFrame(rows, "value binary, attribute string, partition int")


def numbered(topic: JavaTopic, count: int) -> DataFrame:
    """One message for each number, in turn over the partitions, in one task."""
    rows = [(f"{n:05}", "even" if n % 2 == 0 else "odd", topic.indexes[n % len(topic.indexes)]) for n in range(count)]
    return topic.frame(rows, "value string, attribute string, partition int")


def expected(count: int) -> list[str]:
    return [f"{n:05}" for n in range(count)]


def test_any_bytes_come_back_as_they_went_in(java_topic: JavaTopic) -> None:
    messages = arbitrary(java_topic)
    java_topic.write(messages)
    found = java_topic.read()
    assert_df_equality(
        found.select("value", "attribute", "partition"), messages, ignore_row_order=True, ignore_nullable=True
    )
    places = {(row.topic, row.broker_id) for row in found.select("topic", "broker_id").collect()}
    assert places == {(java_topic.name, java_topic.broker_id)}


def test_rows_keep_their_order_and_offsets_are_where_the_messages_lie(java_topic: JavaTopic) -> None:
    java_topic.write(numbered(java_topic, 3000))
    for index in java_topic.indexes:
        rows = java_topic.read(columns="value,attribute,partition,offset").where(f"partition = {index}")
        stored = rows.orderBy("offset").collect()
        values = [row.value.decode() for row in stored]
        assert values == sorted(values)
        for row, after in pairwise(stored):
            assert after.offset - row.offset == 20 + 4 + len(row.attribute) + len(row.value)


def test_ranges_are_split_at_message_boundaries(java_topic: JavaTopic) -> None:
    java_topic.write(numbered(java_topic, 500))
    frame = java_topic.read(maxBytesPerPartition="1k")
    assert frame.rdd.getNumPartitions() > 2 * len(java_topic.indexes)
    assert sorted(row.value.decode() for row in frame.select("value").collect()) == expected(500)


def test_an_ending_offset_and_a_pattern(java_topic: JavaTopic) -> None:
    java_topic.write(numbered(java_topic, 20))
    assert java_topic.values(endingOffsets=java_topic.start) == []
    read = java_topic.spark.read.format("metaq").option("brokers", java_topic.servers)
    found = read.option("subscribePattern", java_topic.name[:-1] + ".").load()
    assert found.where(sf.col("topic") == java_topic.name).count() >= 20


def test_message_types_and_pushed_filters(java_topic: JavaTopic) -> None:
    java_topic.write(numbered(java_topic, 40))
    assert java_topic.values(messageTypes="even") == expected(40)[::2]
    session = java_topic.spark
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = java_topic.read(pushFilters="true").where("attribute = 'odd'")
        assert sorted(row.value.decode() for row in found.collect()) == expected(40)[1::2]
        assert java_topic.read(pushFilters="true").where("timestamp > '2020-01-01'").count() in (0, 40)
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_stream_goes_on_where_it_ended(java_topic: JavaTopic, tmp_path: Path) -> None:
    java_topic.write(numbered(java_topic, 400))
    query = java_topic.drain(java_topic.stream(maxOffsetsPerTrigger="150"), tmp_path)
    sizes = [progress.numInputRows for progress in query.recentProgress]
    assert (len(sizes), sum(sizes)) == (3, 400)
    assert max(sizes) <= 150
    java_topic.write(numbered(java_topic, 401).where("value = '00400'"))
    query = java_topic.drain(java_topic.stream(maxBytesPerTrigger="4k"), tmp_path)
    assert sum(progress.numInputRows for progress in query.recentProgress) == 1
    stored = java_topic.spark.read.parquet(str(tmp_path / "rows")).select("value").collect()
    assert sorted(row.value.decode() for row in stored) == expected(401)


def test_a_stream_into_the_topic(java_topic: JavaTopic, tmp_path: Path) -> None:
    numbered(java_topic, 100).write.parquet(str(tmp_path / "in"))
    rows = java_topic.spark.readStream.schema("value string, attribute string, partition int")
    sink = rows.parquet(str(tmp_path / "in")).writeStream.format("metaq")
    sink = sink.options(brokers=java_topic.servers, topic=java_topic.name, checkpointLocation=str(tmp_path / "c"))
    assert sink.trigger(availableNow=True).start().awaitTermination(120)
    assert java_topic.values() == expected(100)


def test_exactly_once_is_refused_before_anything_is_sent(java_topic: JavaTopic) -> None:
    says = rf"exactly_once: broker {java_topic.servers} does not offer .*must be a metaq-broker of this version"
    with pytest.raises(PySparkException, match=says):
        java_topic.write(numbered(java_topic, 10), delivery="exactly_once")
    assert java_topic.values() == []


@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
def test_reads_by_time_are_refused(java_topic: JavaTopic, option: str) -> None:
    says = rf"broker {java_topic.servers} does not offer 'timestamp', which starting or ending at a time needs"
    with pytest.raises(PySparkException, match=says):
        java_topic.values(**{option: "2026-11-20T06:30:00Z"})


def test_a_stream_by_time_is_refused(java_topic: JavaTopic, tmp_path: Path) -> None:
    times = json.dumps({java_topic.name: {f"{java_topic.broker_id}-{index}": 0 for index in java_topic.indexes}})
    stream = java_topic.stream(startingOffsetsByTimestamp=times)
    with pytest.raises(PySparkException, match="does not offer 'timestamp'"):
        java_topic.drain(stream, tmp_path)


def test_a_topic_that_the_broker_does_not_publish_is_named(java_topic: JavaTopic) -> None:
    other = java_topic.named("no-such-topic-anywhere")
    with pytest.raises(PySparkException, match="topic 'no-such-topic-anywhere' does not exist on "):
        other.write(java_topic.frame([("x",)], "value string"))


def test_brokers_found_by_zookeeper_and_offsets_of_a_group(
    java_topic: JavaTopic, java_zookeeper: str, tmp_path: Path
) -> None:
    by_name = {"zookeeper": java_zookeeper, "group": "metaq-spark-test"}
    numbers = numbered(java_topic, 60)
    numbers.write.format("metaq").mode("append").options(zookeeper=java_zookeeper, topic=java_topic.name).save()
    reader = java_topic.spark.readStream.format("metaq").options(**by_name, subscribe=java_topic.name)
    reader = reader.options(startingOffsets=java_topic.start, commitGroupOffsets="true", maxOffsetsPerTrigger="20")
    java_topic.drain(reader.load(), tmp_path)
    rows = java_topic.spark.read.parquet(str(tmp_path / "rows")).select("value").collect()
    assert sorted(row.value.decode() for row in rows) == expected(60)
    batch = java_topic.spark.read.format("metaq").options(**by_name, subscribe=java_topic.name)
    assert batch.option("startingOffsets", "group").load().count() <= 20, "the group follows at a batch's distance"
