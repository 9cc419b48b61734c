"""Every field of every message: the source beside the Java client, and the Java client beside the sink.

Thousands of messages, or the sizes of ``METAQ_ROCKETMQ_FULL=1``: 1,000,000 of 100 B and 100,000 of 1 KB over 8 queues.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from rocketmq_spark import FULL, LARGE_MESSAGES, SMALL_MESSAGES, RocketMQTopic, differences, dumped_rows

from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1800 if FULL else 900)]

MakeTopic = Callable[..., str]


def write_small(programs: Programs, topic: str) -> int:
    """Messages of 100 B in batches; returns how many."""
    programs.write(topic, SMALL_MESSAGES, size=100, batch=500, tags=7, keys=2, properties=2, flag=9)
    return SMALL_MESSAGES


def write_large(programs: Programs, topic: str) -> int:
    """Messages of 1 KB, compressed, one by one; returns how many."""
    programs.write(topic, LARGE_MESSAGES, size=1000, compressAbove=500, tags=3, keys=1, properties=1)
    return LARGE_MESSAGES


@pytest.mark.parametrize("write", [write_small, write_large], ids=["100-bytes", "1-KB-compressed"])
def test_a_batch_and_a_stream_read_what_a_java_client_wrote(
    rocketmq: Cluster,
    rocketmq_programs: Programs,
    rocketmq_topic: MakeTopic,
    spark: SparkSession,
    tmp_path: Path,
    write: Callable[[Programs, str], int],
) -> None:
    topic = RocketMQTopic(spark, rocketmq_topic(queues=8), rocketmq.name_servers)
    count = write(rocketmq_programs, topic.name)
    expected = dumped_rows(spark, rocketmq_programs, topic.name, tmp_path / "dump.jsonl")
    assert expected.count() == count
    assert differences(topic.read(), expected) == []
    topic.copied(tmp_path, maxOffsetsPerTrigger=str(count // 3)).awaitTermination()
    assert differences(topic.copy(tmp_path), expected) == []


def rows_to_write(spark: SparkSession, count: int, size: int) -> Any:
    """Rows with all columns that the sink takes; every third without tags and keys."""
    number = f.col("id")
    text = f.lpad(number.cast("string"), size, "0123456789abcdefghijklmnopqrstuvwxyz")
    some = number % 3 > 0
    return spark.range(count, numPartitions=4).select(
        text.cast("binary").alias("value"),
        f.when(some, f.concat(f.lit("tag"), number % 5)).alias("tags"),
        f.when(some, f.concat(f.lit("key"), number)).alias("keys"),
        f.create_map(f.lit("n"), number.cast("string"), f.lit("ä消息"), f.lit("值")).alias("properties"),
        (number % 8).cast("int").alias("queue"),
    )


@pytest.mark.parametrize(("count", "size"), [(SMALL_MESSAGES, 100), (LARGE_MESSAGES, 1000)])
def test_a_java_client_reads_what_the_sink_wrote(
    rocketmq: Cluster,
    rocketmq_programs: Programs,
    rocketmq_topic: MakeTopic,
    spark: SparkSession,
    tmp_path: Path,
    count: int,
    size: int,
) -> None:
    topic = RocketMQTopic(spark, rocketmq_topic(queues=8), rocketmq.name_servers)
    rows = rows_to_write(spark, count, size)
    topic.write(rows)
    stored = dumped_rows(spark, rocketmq_programs, topic.name, tmp_path / "dump.jsonl")
    own = f.map_filter("properties", lambda key, _: key.isin("n", "ä消息"))
    written = stored.withColumn("properties", own).withColumn("queue", f.col("queue_id"))
    assert differences(rows, written, ("value", "tags", "keys", "properties", "queue")) == []
    assert stored.select("message_id").distinct().count() == count
    assert differences(topic.read(), stored) == []


def test_a_stream_writes_what_another_read(
    rocketmq: Cluster, rocketmq_programs: Programs, rocketmq_topic: MakeTopic, spark: SparkSession, tmp_path: Path
) -> None:
    source = RocketMQTopic(spark, rocketmq_topic(queues=4), rocketmq.name_servers)
    sink = RocketMQTopic(spark, rocketmq_topic(queues=2), rocketmq.name_servers)
    rocketmq_programs.write(source.name, 3000, size=80, batch=100, tags=4, keys=1)
    rows = source.stream(maxOffsetsPerTrigger="1000").select("value", "tags", "keys")
    writer = rows.writeStream.format("rocketmq").options(nameServers=rocketmq.name_servers, topic=sink.name)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    stored = dumped_rows(spark, rocketmq_programs, sink.name, tmp_path / "dump.jsonl")
    assert differences(source.read(), stored, ("value", "tags", "keys")) == []


@pytest.mark.parametrize(("options", "expected"), [({"tags": "tag1 || tag3"}, {1, 3}), ({"sql": "TAGS = 'tag2'"}, {2})])
def test_the_broker_leaves_out_other_tags(
    rocketmq: Cluster,
    rocketmq_programs: Programs,
    rocketmq_topic: MakeTopic,
    spark: SparkSession,
    options: dict[str, str],
    expected: set[int],
) -> None:
    topic = RocketMQTopic(spark, rocketmq_topic(queues=2), rocketmq.name_servers)
    rocketmq_programs.write(topic.name, 2000, size=20, batch=100, tags=5)
    rows = topic.read(**options).selectExpr("int(substring(cast(value as string), 1, 8)) n").collect()
    assert sorted(row.n for row in rows) == [n for n in range(2000) if n % 5 in expected]
