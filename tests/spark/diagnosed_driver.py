"""A driver of its own that runs a query until it is killed: ``diagnosed_driver.py BROKER CHECKPOINT REPORTS``."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from metaq_spark.diagnosis.listener import ProgressListener

broker, checkpoint, reports = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .getOrCreate()
)
spark.streams.addListener(ProgressListener(reports, spark=spark, status_s=0.5))
frame = spark.readStream.format("metaq").options(brokers=broker, subscribe="orders", startingOffsets="earliest").load()
frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start().awaitTermination()
