"""Choosing, starting, stopping and limiting inside Spark, against a broker process."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, wait_until
from fix_spark import Topic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.process]

TEXT = "cast(value as string) value"


def parquet_values(topic: Topic, folder: Path) -> list[str]:
    rows = topic.spark.read.parquet(str(folder / "rows"))
    return sorted(row.value for row in rows.select("value").collect())


def batch_sizes(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def by_pattern(topic: Topic, pattern: str, **options: str) -> DataFrame:
    given = {"brokers": topic.servers, "subscribePattern": pattern} | options
    return topic.spark.readStream.format("metaq").options(**given).load()


def test_a_topic_that_matches_the_pattern_is_read_as_soon_as_it_appears(topic: Topic, tmp_path: Path) -> None:
    eu, us, other = (topic.named(f"{topic.name}.{name}") for name in ("eu", "us", "eu.old"))
    eu.put("before the start")
    frame = by_pattern(topic, topic.name + r"\.\w+", startingOffsets="latest").selectExpr(TEXT, "topic")
    checkpoint = str(tmp_path / "checkpoint")
    query = frame.writeStream.format("memory").queryName("matching").option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
        eu.put("eu 1")
        us.put("us 1", "us 2")
        other.put("not of the pattern")
        seen: list[tuple[str, str]] = []

        def all_seen() -> bool:
            query.processAllAvailable()
            seen[:] = [(row.topic, row.value) for row in topic.spark.table("matching").collect()]
            return len(seen) >= 3

        wait_until(all_seen, "the messages of the topic that appeared")
        assert sorted(seen) == [(eu.name, "eu 1"), (us.name, "us 1"), (us.name, "us 2")]
    finally:
        query.stop()


def test_only_assigned_partitions(topic: Topic, tmp_path: Path) -> None:
    topic.put("no")
    topic.put("yes", partition=1)
    assign = json.dumps({topic.name: ["3-1"]})
    read = topic.spark.read.format("metaq").options(brokers=topic.servers, assign=assign).load()
    assert [row.value for row in read.selectExpr(TEXT).collect()] == ["yes"]


def test_starts_and_ends_by_time(topic: Topic, tmp_path: Path) -> None:
    times = []
    for value in ("1", "2", "3"):
        topic.put(value)
        (row,) = topic.read().where(f"value = cast('{value}' as binary)").select("timestamp").collect()
        times.append(row.timestamp.astimezone(dt.UTC))
    second, third = times[1].isoformat(), str(round(times[2].timestamp() * 1000))
    assert topic.values(startingTimestamp=second) == ["2", "3"]
    assert topic.values(endingTimestamp=third) == ["1", "2"]
    assert topic.values(
        startingOffsetsByTimestamp=json.dumps({topic.name: {"3-0": second}}), endingTimestamp=third
    ) == ["2"]
    topic.drain(topic.stream(startingTimestamp=third).selectExpr(TEXT), tmp_path)
    assert parquet_values(topic, tmp_path) == ["3"]
    late = topic.stream(startingTimestamp="2100-01-01T00:00:00Z").selectExpr(TEXT)
    with pytest.raises(StreamingQueryException, match="has no message at or after 4102444800000"):
        topic.drain(late, tmp_path / "late")


@pytest.mark.since("4.2")  # no last batch with fewer messages than minOffsetsPerTrigger
def test_batches_of_so_many_messages_and_tasks_of_so_many_bytes(topic: Topic, tmp_path: Path) -> None:
    topic.put(*[f"{n:04}" for n in range(1000)])
    topic.put(*[f"x{n:03}" for n in range(250)], partition=1)
    options = {"maxOffsetsPerTrigger": "500", "minOffsetsPerTrigger": "500", "minPartitions": "6"}
    frame = topic.stream(**options).selectExpr(TEXT, "partition", "spark_partition_id() task", "offset")
    query = topic.drain(frame, tmp_path)
    assert batch_sizes(query) == [500, 500, 250]
    assert parquet_values(topic, tmp_path) == [*[f"{n:04}" for n in range(1000)], *[f"x{n:03}" for n in range(250)]]
    rows = topic.spark.read.parquet(str(tmp_path / "rows"))
    assert rows.select("task").distinct().count() >= 6
    whole = topic.read(maxBytesPerPartition="2400").selectExpr("spark_partition_id() task", "partition", "offset")
    assert whole.groupBy("task").count().selectExpr("max(count)").first()[0] == 100
    assert whole.select("partition", "offset").distinct().count() == 1250


def test_the_checkpoint_wins_over_start_options(topic: Topic, tmp_path: Path) -> None:
    topic.put("1", "2")
    topic.drain(topic.stream().selectExpr(TEXT), tmp_path)
    topic.put("3")
    again = by_pattern(topic, topic.name, startingTimestamp="2100-01-01T00:00:00Z").selectExpr(TEXT)
    topic.drain(again, tmp_path)
    assert parquet_values(topic, tmp_path) == ["1", "2", "3"]


def orders_of_one_partition(spark: SparkSession, start_broker: StartBroker, data: Path) -> tuple[RunningBroker, Topic]:
    """Start a broker on this data folder, and its topic ``orders``."""
    broker = start_broker("dev", data, "--port", "0", "--partitions", "1")
    return broker, Topic(spark, "orders", str(broker.address))


@pytest.mark.long
def test_a_recreated_topic_fails_or_is_read_from_its_first_message(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    broker, topic = orders_of_one_partition(spark, start_broker, data)
    topic.put("1", "2", "3")
    topic.drain(topic.stream().selectExpr(TEXT), tmp_path)
    assert broker.stop() == 0
    shutil.rmtree(data / "orders-0")
    _, again = orders_of_one_partition(spark, start_broker, data)
    again.put(*[f"new {n}" for n in range(9)])  # more than there was: the old offset looks valid
    with pytest.raises(StreamingQueryException, match="of another incarnation: the topic was deleted and made again"):
        again.drain(again.stream().selectExpr(TEXT), tmp_path)
    again.drain(again.stream(failOnDataLoss="false").selectExpr(TEXT), tmp_path)
    assert parquet_values(again, tmp_path) == ["1", "2", "3", *[f"new {n}" for n in range(9)]]


@pytest.mark.long
def test_messages_put_after_the_end_was_lost_are_read(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    broker, topic = orders_of_one_partition(spark, start_broker, data)
    topic.put(*[f"old {n}" for n in range(300)])
    topic.drain(topic.stream().selectExpr(TEXT), tmp_path)
    assert broker.stop() == 0
    (segment,) = (data / "orders-0").glob("*.meta")
    segment.write_bytes(segment.read_bytes()[:5000])
    _, again = orders_of_one_partition(spark, start_broker, data)
    again.put(*[f"new {n}" for n in range(120)])
    again.drain(again.stream().selectExpr(TEXT), tmp_path)
    assert {f"new {n}" for n in range(120)} <= set(parquet_values(again, tmp_path))
