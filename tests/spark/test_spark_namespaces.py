"""``format("rocketmq")`` with a namespace on the bundled broker: it meets clients that use the full names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_spark import run_to_end
from pyspark.sql import SparkSession

from metaq.client.rocketmq.client import RocketMQ
from metaq.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.process]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), partitions=2) as made:
        yield made


def test_a_namespace_is_a_prefix_for_all_others(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    reach = {"nameServers": broker.name_servers}
    named = reach | {"namespace": "shop"}
    rows = spark.createDataFrame([("one",), ("two",)], "value string")
    rows.write.format("rocketmq").mode("append").options(**named).option("topic", "orders").save()
    rows = spark.createDataFrame([("three",)], "value string")
    rows.write.format("rocketmq").mode("append").options(**reach).option("topic", "shop%orders").save()
    expected = ["one", "three", "two"]
    for options, topic in ((named, "orders"), (reach, "shop%orders")):
        frame = spark.read.format("rocketmq").options(**options).option("subscribe", topic).load()
        found = frame.selectExpr("topic", "cast(value as string) as value").collect()
        assert sorted(row["value"] for row in found) == expected
        assert {row["topic"] for row in found} == {topic}
    with RocketMQ(broker.name_servers) as mq:
        assert sorted(one.data.decode() for one in mq.browse("shop%orders")) == expected
        mq.topics.create("shop%copies", queues=2)

    writer = (
        spark.readStream.format("rocketmq").options(**named).option("subscribe", "orders")
        .option("startingOffsets", "earliest").option("group", "readers").option("commitGroupOffsets", "true").load()
        .select("value")
        .writeStream.format("rocketmq").options(**named).option("topic", "copies")
        .option("delivery", "exactly_once").option("checkpointLocation", str(tmp_path / "progress"))
    )  # fmt: skip
    assert run_to_end(writer).awaitTermination(120)
    with RocketMQ(broker.name_servers) as mq:
        assert sorted(one.data.decode() for one in mq.browse("shop%copies")) == expected
        assert sum(one.messages_behind for one in mq.cluster.lag("shop%readers", ["shop%orders"])) == 0
    pattern = spark.read.format("rocketmq").options(**named).option("subscribePattern", "copi.*").load()
    assert {row["topic"] for row in pattern.select("topic").collect()} == {"copies"}
