"""Queries that began with ``latest`` while one of two brokers was away: what that broker held then is not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import StartBroker, launch_in
from fix_spark import Topic
from local_servers import BrokerPair, running_name_server
from pyspark.sql import SparkSession
from rocketmq_spark import RocketMQTopic

from metaq import RocketMQ

pytestmark = [pytest.mark.spark, pytest.mark.process]


def read(topic: Topic, folder: Path) -> list[str]:
    """What a query that began with ``latest`` has read when it is run to the end of what there is."""
    topic.drain(topic.stream(startingOffsets="latest"), folder)
    rows = topic.spark.read.schema("value binary").parquet(str(folder / "rows"))
    return sorted(bytes(row.value).decode() for row in rows.collect())


def test_a_metaq_broker_that_is_named_later(spark: SparkSession, tmp_path: Path) -> None:
    first, second = (launch_in(tmp_path / str(n), "[topic=orders]\n", brokerId=n) for n in (0, 1))
    try:
        one, other = Topic(spark, "orders", str(first.address)), Topic(spark, "orders", str(second.address))
        both = Topic(spark, "orders", f"{first.address},{second.address}")
        one.put("old at 0")
        other.put("old at 1")
        assert read(one, tmp_path / "query") == []
        one.put("new at 0")
        other.put("new at 1")
        assert read(both, tmp_path / "query") == ["new at 0", "new at 1"]
    finally:
        first.end()
        second.end()


def test_a_rocketmq_broker_that_returns(spark: SparkSession, start_broker: StartBroker, tmp_path: Path) -> None:
    with running_name_server(tmp_path) as name_server:
        pair = BrokerPair(start_broker, tmp_path, name_server.address)
        topic = RocketMQTopic(spark, "orders", pair.name_server)

        def put(value: str) -> None:
            with RocketMQ(pair.name_server) as mq, mq.producer() as producer:
                for queue in mq.cluster.partitions("orders"):
                    producer.send("orders", f"{value} {queue}".encode(), partition=queue)

        put("old")
        pair.kill("broker-b")
        assert read(topic, tmp_path / "query") == []
        pair.start("broker-b")
        pair.wait_for("broker-a", "broker-b")
        put("new")
        expected = [f"new broker-{name}:{index}" for name in "ab" for index in (0, 1)]
        assert read(topic, tmp_path / "query") == expected
