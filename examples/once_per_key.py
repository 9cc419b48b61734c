"""Messages of a producer that may send twice, each key once: ``dropDuplicatesWithinWatermark``.

    python examples/once_per_key.py 127.0.0.1:8123

The producer puts its key into the attribute: ``key=a17``. Of the messages with the same key within an hour, the first
one goes to topic ``once``, exactly once. With RocketMQ, use ``format("rocketmq")`` and its column ``keys``, or
``message_id`` for what one producer has sent twice.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter


def query(spark: SparkSession, brokers: str) -> DataStreamWriter:
    """Copy topic ``orders`` to topic ``once``, without messages that were sent again."""
    reader = spark.readStream.format("metaq").options(brokers=brokers, subscribe="orders", startingOffsets="earliest")
    rows = reader.option("attributeFormat", "map").load().selectExpr("attribute['key'] AS key", "timestamp", "value")
    once = rows.withWatermark("timestamp", "1 hour").dropDuplicatesWithinWatermark(["key"])
    attributed = once.selectExpr("value", "'key=' || key AS attribute")
    return attributed.writeStream.format("metaq").options(brokers=brokers, topic="once", delivery="exactly_once")


if __name__ == "__main__":
    session = SparkSession.builder.appName("once per key").getOrCreate()
    query(session, sys.argv[1]).option("checkpointLocation", "checkpoints/once").start().awaitTermination()
