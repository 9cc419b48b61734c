"""Orders with their payments: a join of two topics. An order waits for its payment for an hour.

    python examples/paid_orders.py 127.0.0.1:8123

Messages of topics ``orders`` and ``payments`` are JSON with an ``id``. Topic ``paid`` gets
``{"id": 7, "customer": "ann", "method": "card"}``, exactly once. ``timestamp`` is when the broker took a message.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter


def messages(spark: SparkSession, brokers: str, topic: str, schema: str) -> DataFrame:
    """The messages of a topic as columns, with ``TOPIC_at``."""
    reader = spark.readStream.format("metaq").options(brokers=brokers, subscribe=topic, startingOffsets="earliest")
    reader = reader.options(valueFormat="json", valueSchema=schema, mode="dropmalformed")
    rows = reader.load().select("value.*", F.col("timestamp").alias(f"{topic}_at"))
    return rows.withWatermark(f"{topic}_at", "10 minutes")


def query(spark: SparkSession, brokers: str) -> DataStreamWriter:
    """Send each order whose payment comes within an hour to topic ``paid``."""
    orders = messages(spark, brokers, "orders", "id BIGINT, customer STRING")
    payments = messages(spark, brokers, "payments", "id BIGINT, method STRING").withColumnRenamed("id", "order_id")
    in_time = F.expr("id = order_id AND payments_at BETWEEN orders_at AND orders_at + INTERVAL 1 HOUR")
    paid = orders.join(payments, in_time).select(F.to_json(F.struct("id", "customer", "method")).alias("value"))
    return paid.writeStream.format("metaq").options(brokers=brokers, topic="paid", delivery="exactly_once")


if __name__ == "__main__":
    session = SparkSession.builder.appName("paid orders").getOrCreate()
    query(session, sys.argv[1]).option("checkpointLocation", "checkpoints/paid").start().awaitTermination()
