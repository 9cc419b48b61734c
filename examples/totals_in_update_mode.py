"""A running total for each customer: every micro-batch sends the totals that changed, exactly once.

    python examples/totals_in_update_mode.py 127.0.0.1:8123

Messages of topic ``orders`` are JSON: ``{"customer": "ann", "amount": 5}``. Topic ``totals`` gets
``{"customer": "ann", "total": 12}`` whenever a total changes. Spark refuses output mode ``update`` for a sink in
Python; ``foreachBatch`` takes it, and ``ExactlyOnceBatches`` writes every micro-batch once, whatever is killed.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

from metaq_spark.foreach_batch import ExactlyOnceBatches


def orders(spark: SparkSession, brokers: str, topic: str = "orders") -> DataFrame:
    """The orders as columns; what is no order is left out."""
    reader = spark.readStream.format("metaq").options(brokers=brokers, subscribe=topic, startingOffsets="earliest")
    reader = reader.options(valueFormat="json", valueSchema="customer STRING, amount BIGINT", mode="dropmalformed")
    return reader.load().select("value.*")


def totals(rows: DataFrame) -> DataFrame:
    """The total of each customer."""
    return rows.groupBy("customer").agg(F.sum("amount").alias("total"))


def query(spark: SparkSession, brokers: str) -> DataStreamWriter:
    """Send the totals that changed to topic ``totals``."""
    changed = totals(orders(spark, brokers)).select(F.to_json(F.struct("customer", "total")).alias("value"))
    write = ExactlyOnceBatches("metaq", brokers=brokers, topic="totals", txnAppId="totals-1")
    return changed.writeStream.outputMode("update").foreachBatch(write)


if __name__ == "__main__":
    session = SparkSession.builder.appName("totals").getOrCreate()
    query(session, sys.argv[1]).option("checkpointLocation", "checkpoints/totals").start().awaitTermination()
