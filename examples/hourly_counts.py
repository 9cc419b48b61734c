"""Count messages by the hour with Spark, and send each finished hour once, even over crashes.

    python examples/hourly_counts.py 127.0.0.1:8123

Messages are JSON such as ``{"at": "2026-11-27T10:05:00Z", "item": "tea"}``. An hour is finished when a message says
that it is ten minutes past its end. Stop the program and start it again: it continues where it was.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, struct, to_json, window
from pyspark.sql.streaming.readwriter import DataStreamWriter


def query(spark: SparkSession, brokers: str) -> DataStreamWriter:
    """Count the messages of ``orders`` by the hour in which they were placed, to topic ``hourly``."""
    orders = spark.readStream.format("metaq").options(brokers=brokers, subscribe="orders", startingOffsets="earliest")
    parsed = orders.options(valueFormat="json", valueSchema="at TIMESTAMP, item STRING").load().select("value.*")
    hours = parsed.withWatermark("at", "10 minutes").groupBy(window("at", "1 hour"))
    counts = hours.agg(count("*").alias("orders")).select(col("window.start").alias("hour"), "orders")
    rows = counts.select(to_json(struct("hour", "orders")).alias("value"))
    return rows.writeStream.format("metaq").options(brokers=brokers, topic="hourly", delivery="exactly_once")


if __name__ == "__main__":
    session = SparkSession.builder.appName("hourly counts").getOrCreate()
    query(session, sys.argv[1]).option("checkpointLocation", "checkpoints/hourly").start().awaitTermination()
