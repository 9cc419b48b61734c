"""Streaming reads and writes inside Spark, against a broker process."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from chispa import assert_df_equality
from fix_broker import wait_until
from fix_spark import Topic, for_each_batch
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from metaq_spark.spark_version import LATEST_OFFSET

pytestmark = [pytest.mark.spark, pytest.mark.process]

TEXT = "cast(value as string) value"


def parquet(topic: Topic, folder: Path) -> DataFrame:
    return topic.spark.read.parquet(str(folder / "rows"))


def parquet_values(topic: Topic, folder: Path) -> list[str]:
    return sorted(row.value for row in parquet(topic, folder).select("value").collect())


def batch_sizes(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_a_running_query_sees_what_is_written_and_nothing_older(topic: Topic, tmp_path: Path) -> None:
    topic.put("old")
    query = (
        topic.stream(startingOffsets="latest")
        .selectExpr(TEXT, "partition")
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()

        def all_seen(count: int) -> bool:
            query.processAllAvailable()  # brokers that answer slowly are asked every 100 ms only: not yet for the last
            return topic.spark.table("seen").count() >= count

        for round_number in range(3):
            # Partition 1 is new to the query: its first messages must be there all the same.
            topic.put(f"a{round_number}")
            topic.put(f"b{round_number}", partition=1)
            wait_until(partial(all_seen, 2 * (round_number + 1)), "what was put meanwhile")
        seen = topic.spark.table("seen")
        expected = topic.frame([(f"{letter}{n}", p) for p, letter in enumerate("ab") for n in range(3)], seen.schema)
        assert_df_equality(seen, expected, ignore_row_order=True, ignore_nullable=True)
        (source,) = query.lastProgress["sources"]
        assert source["description"]
        if LATEST_OFFSET.present:
            assert json.loads(source["latestOffset"])["topics"] == {topic.name: {"3-0": 23 + 3 * 22, "3-1": 66}}
    finally:
        query.stop()


def test_available_now_reads_what_is_there_and_ends(topic: Topic, tmp_path: Path) -> None:
    topic.put(*[f"{n:04}" for n in range(2000)])
    topic.put("other", partition=1)
    query = topic.drain(topic.stream().selectExpr(TEXT), tmp_path)
    assert len(batch_sizes(query)) == 1
    assert parquet_values(topic, tmp_path) == [*[f"{n:04}" for n in range(2000)], "other"]


def test_available_now_under_a_limit_takes_several_batches(topic: Topic, tmp_path: Path) -> None:
    topic.put(*[f"{n:04}" for n in range(2000)])
    topic.put(*[f"x{n:03}" for n in range(500)], partition=1)
    query = topic.drain(topic.stream(maxBytesPerTrigger="20000").selectExpr(TEXT, "partition"), tmp_path)
    sizes = batch_sizes(query)
    assert sum(sizes) == 2500
    assert len(sizes) == 4
    assert all(size * 24 <= 20_000 for size in sizes)
    assert parquet_values(topic, tmp_path) == [*[f"{n:04}" for n in range(2000)], *[f"x{n:03}" for n in range(500)]]


@pytest.mark.long
def test_a_message_larger_than_the_limit_gets_through(topic: Topic, tmp_path: Path) -> None:
    topic.put("small", "L" * 200_000, "small again")
    query = topic.drain(topic.stream(maxBytesPerTrigger="100").selectExpr(TEXT), tmp_path)
    assert batch_sizes(query) == [1, 1, 1]
    assert parquet_values(topic, tmp_path) == ["L" * 200_000, "small", "small again"]


def test_a_restart_goes_on_where_the_checkpoint_says(topic: Topic, tmp_path: Path) -> None:
    topic.put("1", "2")
    topic.drain(topic.stream().selectExpr(TEXT), tmp_path)
    topic.put("3")
    topic.put("new partition", partition=1)
    # What is asked for when the query was made does not matter any more.
    topic.drain(topic.stream(startingOffsets="latest", maxBytesPerTrigger="64m").selectExpr(TEXT), tmp_path)
    topic.drain(topic.stream().selectExpr(TEXT), tmp_path)
    assert parquet_values(topic, tmp_path) == ["1", "2", "3", "new partition"]


def test_a_start_at_given_offsets(topic: Topic, tmp_path: Path) -> None:
    topic.put("1", "2", "3")
    start = json.dumps({topic.name: {"3-0": 21}})
    topic.drain(topic.stream(startingOffsets=start).selectExpr(TEXT), tmp_path)
    assert parquet_values(topic, tmp_path) == ["2", "3"]


def test_from_topic_to_topic_in_order(topic: Topic, tmp_path: Path) -> None:
    target = topic.named(topic.name + "-target")
    for partition in (0, 1):
        topic.put(*[f"{partition}-{n:05}" for n in range(3000)], partition=partition)
    upper = topic.stream(maxBytesPerTrigger="30000").selectExpr(
        "'copy of ' || cast(value as string) value", "partition", "'copied' attribute"
    )

    def copy() -> StreamingQuery:
        query = target.append_all(upper, tmp_path)
        assert query.awaitTermination(120)
        return query

    assert len(batch_sizes(copy())) > 3
    topic.put("0-99999")
    copy()
    for partition, last in ((0, ["copy of 0-99999"]), (1, [])):
        rows = target.read().where(f"partition = {partition}").orderBy("offset").selectExpr(TEXT, "attribute").collect()
        assert [row.value for row in rows] == [f"copy of {partition}-{n:05}" for n in range(3000)] + last
        assert {row.attribute for row in rows} == {"copied"}


@pytest.mark.long
def test_rows_without_a_key_are_spread_over_the_partitions(topic: Topic, tmp_path: Path) -> None:
    ten = topic.named(topic.name + "-unkeyed")
    topic.put(*[str(n) for n in range(100)])
    query = ten.append_all(topic.stream(maxBytesPerTrigger="300").selectExpr(TEXT), tmp_path)
    assert query.awaitTermination(120)
    placed = Counter(row.partition for row in ten.read().select("partition").collect())
    assert sum(placed.values()) == 100
    assert set(placed) == {0, 1}
    assert min(placed.values()) > 20


def test_a_write_inside_foreach_batch(topic: Topic, tmp_path: Path) -> None:
    target = topic.named(topic.name + "-target")
    topic.put("1", "2", "3")

    def forward(frame: DataFrame, batch_id: int) -> None:
        target.write(frame.select("value"))

    for_each_batch(topic.stream(), forward, tmp_path)
    assert target.stored() == ["1", "2", "3"]


@pytest.mark.long
def test_a_running_aggregate_in_complete_mode_is_appended_whole(topic: Topic, tmp_path: Path) -> None:
    target = topic.named(topic.name + "-target")
    topic.put("a", "b", "a")
    counts = topic.stream().selectExpr(TEXT).groupBy("value").count().selectExpr("value || ':' || count value")

    def run() -> None:
        assert target.append_all(counts, tmp_path, "complete").awaitTermination(120)

    run()
    topic.put("b")
    run()
    assert target.stored() == ["a:2", "a:2", "b:1", "b:2"]
