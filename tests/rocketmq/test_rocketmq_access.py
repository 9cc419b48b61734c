"""Accounts of a 4.9.7 broker, and a 5.5.0 proxy as the source: what may be read is read, all else is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rocketmq_spark import RocketMQTopic, differences, dumped_rows

from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

ACCOUNTS = """\
- accessKey: reader-key
  secretKey: reader-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [orders=SUB]
  groupPerms: [spark-readers=SUB]
- accessKey: writer-key
  secretKey: writer-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [orders=PUB]
"""


def with_account(topic: RocketMQTopic, name: str, secret: str | None = None) -> RocketMQTopic:
    """The topic as an account sees it."""
    keys = (("accessKey", f"{name}-key"), ("secretKey", secret or f"{name}-secret"))
    return RocketMQTopic(topic.spark, topic.name, topic.servers, keys)


@pytest.mark.rocketmq_only("4.9.7")
def test_an_account_reads_and_writes_what_it_may(
    rocketmq_cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster = rocketmq_cluster
    cluster.start_name_server()
    cluster.start_broker(accounts=ACCOUNTS)
    cluster.create_topic("orders", queues=2)
    everything = Programs(cluster.release, cluster.name_servers, cluster.administrator)
    everything.write("orders", 100, batch=10)
    anonymous = RocketMQTopic(spark, "orders", cluster.name_servers)
    reader, writer = with_account(anonymous, "reader"), with_account(anonymous, "writer")
    assert reader.read(group="spark-readers").count() == 100
    writer.write(spark.range(50).selectExpr("cast(string(id) as binary) value"))
    assert reader.read(group="spark-readers").count() == 150
    reader.copied(tmp_path, group="spark-readers").awaitTermination()
    assert reader.copy(tmp_path).count() == 150
    refused = [
        (reader.read, {}, r"metaq-spark|group"),
        (writer.read, {"group": "spark-readers"}, r"orders|SUB"),
        (anonymous.read, {}, r"accessKey|account"),
        (with_account(anonymous, "reader", "wrong").read, {"group": "spark-readers"}, r"ignature|account"),
    ]
    for read, options, says in refused:
        with pytest.raises(Exception, match=says) as caught:
            read(**options).count()
        assert "reader-secret" not in str(caught.value)
    # A 4.9.7 broker looks at the keys of a batch and not at its topic: the reader's account would be let in.
    with pytest.raises(Exception, match=r"ignature|account"):
        with_account(anonymous, "writer", "wrong").write(spark.range(5).selectExpr("cast(string(id) as binary) value"))


@pytest.mark.rocketmq_only("5.5.0")
def test_a_proxy_is_read_and_written_like_a_cluster(
    rocketmq_cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster = rocketmq_cluster
    cluster.start_name_server()
    cluster.start_broker()
    cluster.create_topic("orders", queues=4)
    direct = Programs(cluster.release, cluster.name_servers)
    direct.write("orders", 2000, size=100, batch=100, tags=3, keys=1, properties=1)
    topic = RocketMQTopic(spark, "orders", cluster.start_proxy().address)
    columns = ("queue_id", "queue_offset", "message_id", "keys", "tags", "properties", "store_timestamp", "value")
    dump = tmp_path / "dump.jsonl"
    assert differences(topic.read(), dumped_rows(spark, direct, "orders", dump), columns) == []
    topic.copied(tmp_path, maxOffsetsPerTrigger="700").awaitTermination()
    topic.write(spark.range(500).selectExpr("cast(string(id) as binary) value", "concat('tag', id % 3) tags"))
    topic.copied(tmp_path).awaitTermination()
    assert differences(topic.copy(tmp_path), dumped_rows(spark, direct, "orders", dump), columns) == []
