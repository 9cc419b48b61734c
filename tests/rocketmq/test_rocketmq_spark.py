"""``format("rocketmq")`` with real servers: what Java wrote is read, what Spark writes Java reads, servers that end."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType
from rocketmq_spark import Run, options_for

from metaq.backends.rocketmq.errors import AccessDenied
from metaq_spark.backends.rocketmq.options import parse_source_options
from metaq_spark.backends.rocketmq.source import RocketMQSource
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]

Topic = Callable[..., str]
Dumped = Callable[..., list[Mapping[str, Any]]]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def read(spark: SparkSession, cluster: Cluster, topic: str, **more: str) -> DataFrame:
    return spark.read.format("rocketmq").options(**options_for(cluster, topic, **more)).load()


def by_place(rows: list[dict[str, Any]]) -> dict[tuple[str, int, int], dict[str, Any]]:
    return {(row["broker_name"], row["queue_id"], row["queue_offset"]): row for row in rows}


def as_java_sees(row: dict[str, Any]) -> dict[str, Any]:
    """A row in the form of a dumped message."""
    times = {
        name: (row[name].astimezone(dt.UTC) - EPOCH) // dt.timedelta(milliseconds=1)
        for name in ("born_timestamp", "store_timestamp")
    }
    return {**row, **times, "value": base64.b64encode(bytes(row["value"])).decode()}


def assert_same(rows: list[dict[str, Any]], dumped: list[Mapping[str, Any]]) -> None:
    """Every message once, every field as the Java client decoded it."""
    found = by_place([as_java_sees(row) for row in rows])
    assert len(found) == len(rows) == len(dumped)
    for message in dumped:
        row = found[message["broker_name"], message["queue_id"], message["queue_offset"]]
        for name in (
            "topic", "message_id", "offset_message_id", "keys", "tags", "born_timestamp", "store_timestamp",
            "reconsume_times", "flag", "value",
        ):  # fmt: skip
            assert row[name] == message[name], (name, message)
        added = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}  # by the Java client
        assert row["properties"] == {n: v for n, v in message["properties"].items() if n not in added}


def test_what_java_wrote_is_read_by_batch_and_stream(
    spark: SparkSession,
    rocketmq: Cluster,
    rocketmq_topic: Topic,
    rocketmq_programs: Programs,
    dumped: Dumped,
    tmp_path: Path,
) -> None:
    topic = rocketmq_topic(queues=8)
    rocketmq_programs.write(topic, 3000, size=100, tags=3, keys=2, properties=2, flag=5)
    rocketmq_programs.write(topic, 200, size=6000, first=3000, compressAbove=4096, tags=3)
    expected = dumped(topic)
    assert len(expected) == 3200
    assert_same([row.asDict() for row in read(spark, rocketmq, topic).collect()], expected)

    stream = spark.readStream.format("rocketmq").options(**options_for(rocketmq, topic, maxOffsetsPerTrigger="1000"))
    query = (
        stream.load().writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "progress")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert len([one for one in query.recentProgress if one["numInputRows"]]) == 4
    assert_same([row.asDict() for row in spark.read.parquet(str(tmp_path / "rows")).collect()], expected)

    tagged = read(spark, rocketmq, topic, tags="tag0 || tag2", columns="tags").groupBy("tags").count().collect()
    wanted = [message["tags"] for message in expected if message["tags"] in ("tag0", "tag2")]
    assert {row.tags: row["count"] for row in tagged} == {tag: wanted.count(tag) for tag in ("tag0", "tag2")}
    assert read(spark, rocketmq, topic, sql="TAGS = 'tag1'", columns="tags").distinct().collect() == [("tag1",)]


def test_what_spark_wrote_java_reads(
    spark: SparkSession, rocketmq: Cluster, rocketmq_topic: Topic, dumped: Dumped
) -> None:
    topic = rocketmq_topic(queues=4)
    rows = [
        (f"body {n} ä消息".encode() * (1 + n % 50), f"tag{n % 3}", f"k{n} l{n}", {"a": str(n), "消": "息"}, n % 100)
        for n in range(5000)
    ]
    fields = (
        ("value", BinaryType()), ("tags", StringType()), ("keys", StringType()),
        ("properties", MapType(StringType(), StringType())), ("key", LongType()),
    )  # fmt: skip
    frame = spark.createDataFrame(rows, StructType([StructField(*field) for field in fields])).repartition(3)
    write = frame.write.format("rocketmq").mode("append").option("nameServers", rocketmq.name_servers)
    write.option("topic", topic).save()
    wait_until(lambda: read(spark, rocketmq, topic, columns="queue_id").count() == len(rows), "all messages")
    found = dumped(topic)
    assert sorted((base64.b64decode(m["value"]), m["tags"], m["keys"]) for m in found) == sorted(r[:3] for r in rows)
    assert len({message["message_id"] for message in found}) == len(rows)
    queue_of: dict[str, set[int]] = {}
    for message in found:
        number = message["properties"]["a"]
        assert message["properties"]["消"] == "息"
        queue_of.setdefault(str(int(number) % 100), set()).add(message["queue_id"])
    assert all(len(queues) == 1 for queues in queue_of.values())


def test_many_small_messages_and_a_large_one(spark: SparkSession, rocketmq: Cluster, rocketmq_topic: Topic) -> None:
    """As many as the broker takes in one batch, whatever it adds to each of them."""
    topic = rocketmq_topic(queues=1)
    small = spark.range(60_000).selectExpr("cast('x' AS BINARY) AS value")
    large = spark.range(1).selectExpr("cast(repeat('y', 4000000) AS BINARY) AS value")
    for frame in (small.coalesce(1), large):
        write = frame.write.format("rocketmq").mode("append").option("nameServers", rocketmq.name_servers)
        write.option("topic", topic).option("blockBytes", "3m").save()
    wait_until(lambda: read(spark, rocketmq, topic, columns="queue_id").count() == 60_001, "all messages")
    lengths = read(spark, rocketmq, topic, columns="value").selectExpr("length(value) AS n").groupBy("n").count()
    assert sorted(map(tuple, lengths.collect())) == [(1, 60_000), (4_000_000, 1)]


# ---- the reader alone, without Spark's processes around it: servers of the test's own


def test_a_queue_is_added_and_a_name_server_killed(rocketmq_cluster: Cluster) -> None:
    cluster = rocketmq_cluster
    first, second = cluster.start_name_server(), cluster.start_name_server()
    cluster.start_broker("broker-a")
    cluster.create_topic("orders", queues=2)
    programs = Programs(cluster.release, second.address)  # 5.5.0's Java client needs one that answers when it starts
    programs.write("orders", 100)
    run = Run(cluster, "orders")
    run.wait_for(100)
    cluster.create_topic("orders", queues=4)
    programs.write("orders", 100, first=100)
    run.wait_for(200)
    first.kill()
    programs.write("orders", 50, first=200)
    run.wait_for(250)


def test_a_master_is_killed_with_its_slave_up(rocketmq_cluster: Cluster) -> None:
    cluster = rocketmq_cluster
    cluster.start_name_server()
    master = cluster.start_broker("broker-a")
    slave = cluster.start_broker("broker-a", broker_id=1, slaveReadEnable="true")
    cluster.create_topic("orders", queues=2)
    programs = Programs(cluster.release, cluster.name_servers)
    programs.write("orders", 400)
    run = Run(cluster, "orders", maxOffsetsPerTrigger="100")
    wait_until(lambda: 1 in run.refreshed_brokers()["broker-a"], "the slave in the route", 60)
    wait_until(lambda: all(cluster.gives(slave, "orders", queue, 199) for queue in (0, 1)), "the slave's copy", 60)
    assert run.micro_batch()
    assert len(run.values) == 100
    master.kill()
    run.wait_for(400)
    master.start()
    programs.write("orders", 50, first=400)
    run.wait_for(450)


@pytest.mark.rocketmq_only("4.9.7")
def test_accounts(rocketmq_cluster: Cluster) -> None:
    cluster = rocketmq_cluster
    cluster.start_name_server()
    cluster.start_broker(
        accounts=(
            "- accessKey: reader-key\n  secretKey: reader-secret\n  defaultTopicPerm: SUB\n  defaultGroupPerm: SUB\n"
            "- accessKey: nobody-key\n  secretKey: nobody-secret\n  defaultTopicPerm: DENY\n  defaultGroupPerm: DENY\n"
        )
    )
    cluster.create_topic("orders", queues=1)
    Programs(cluster.release, cluster.name_servers, cluster.administrator).write("orders", 10)

    def values(access_key: str, secret_key: str) -> list[bytes]:
        given = options_for(cluster, "orders", accessKey=access_key, secretKey=secret_key)
        reader = BatchReader(RocketMQSource(parse_source_options(given, Use.BATCH_READ)))
        tasks = reader.partitions()
        return [v for task in tasks for batch in reader.read(task) for v in batch["value"].to_pylist()]

    wait_until(lambda: len(values("reader-key", "reader-secret")) == 10, "ten messages")
    with pytest.raises(AccessDenied, match="check accessKey and secretKey") as caught:
        values("reader-key", "wrong-secret")
    assert "wrong-secret" not in str(caught.value)
    with pytest.raises(AccessDenied, match=r"No default permission for topic:orders.*check that the account has"):
        values("nobody-key", "nobody-secret")


@pytest.mark.rocketmq_only("5.5.0")
def test_a_proxy_is_enough(rocketmq_cluster: Cluster) -> None:
    cluster = rocketmq_cluster
    cluster.start_name_server()
    cluster.start_broker("broker-a")
    cluster.create_topic("orders", queues=2)
    Programs(cluster.release, cluster.name_servers).write("orders", 500, tags=2)
    proxy = cluster.start_proxy()
    given = options_for(cluster, "orders", nameServers=str(proxy.address))
    reader = BatchReader(RocketMQSource(parse_source_options(given, Use.BATCH_READ)))
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert len(rows) == 500
    assert {row["tags"] for row in rows} == {"tag0", "tag1"}
