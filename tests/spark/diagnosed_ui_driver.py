"""A driver with Spark's UI, one core and 512 MiB: ``diagnosed_ui_driver.py BROKER CHECKPOINT REPORTS``.

Each message becomes 150,000 rows that its query remembers. A line at the standard input starts a job that keeps the
core until the process ends.
"""

from __future__ import annotations

import sys
import time

from pyspark.sql import SparkSession

from metaq_spark.diagnosis.listener import ProgressListener

ROWS = 150_000
HOURS_S = 36_000

broker, checkpoint, reports = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "512m")
    .config("spark.ui.enabled", "true")
    .config("spark.ui.port", "0")
    .config("spark.sql.shuffle.partitions", "3")
    .config("spark.log.level", "OFF")
    .getOrCreate()
)
spark.streams.addListener(ProgressListener(reports, spark=spark, status_s=0.5))
frame = spark.readStream.format("metaq").options(brokers=broker, subscribe="orders", startingOffsets="earliest").load()
rows = frame.selectExpr(f"explode(sequence(1, {ROWS})) AS number", "CAST(value AS STRING) AS text").dropDuplicates()
rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
sys.stdin.readline()


def keep_the_core(numbers: object) -> list[int]:
    time.sleep(HOURS_S)
    return []


spark.sparkContext.parallelize([0], 1).mapPartitions(keep_the_core).count()
