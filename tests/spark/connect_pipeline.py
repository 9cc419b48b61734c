"""Pipelines through Spark Connect, with a server of its own: batch write, stream from topic to topic, batch read; then
the one of ``lag_pipeline``.

``python connect_pipeline.py BROKERS FOLDER``; prints what it read at the end, then what ``lag_pipeline`` prints and
logs.
"""

from __future__ import annotations

import logging
import sys

import lag_pipeline
from pyspark.sql import SparkSession


def main(brokers: str, folder: str) -> None:
    builder = SparkSession.builder.remote("local[2]").config("spark.connect.grpc.binding.address", "127.0.0.1")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    try:
        print("client:", type(spark).__module__)
        rows = spark.createDataFrame(
            [(f"message {n}", n % 2) for n in range(100)], "value string, partition int"
        ).coalesce(1)
        sink = {"brokers": brokers, "delivery": "exactly_once"}
        rows.write.format("metaq").mode("append").options(topic="in", **sink).save()
        stream = (
            spark.readStream.format("metaq")
            .options(brokers=brokers, subscribe="in", startingOffsets="earliest", maxBytesPerTrigger="1k")
            .load()
            .select("value", "partition")
        )
        writer = stream.writeStream.format("metaq").options(topic="out", checkpointLocation=folder, **sink)
        query = writer.start()
        query.processAllAvailable()
        print("batches:", len(query.recentProgress) > 1, "failure:", query.exception())
        query.stop()
        copied = spark.read.format("metaq").options(brokers=brokers, subscribe="out").load()
        values = [row.value.decode() for row in copied.orderBy("partition", "offset").select("value").collect()]
        print("rows:", len(values), "in order:", values == sorted(values, key=lambda text: key(text)))
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="LOG %(name)s %(message)s")
        lag_pipeline.follow(spark, brokers, f"{folder}-lag")
    finally:
        spark.stop()


def key(text: str) -> tuple[int, int]:
    """Partition, then place in it."""
    number = int(text.split()[1])
    return number % 2, number


if __name__ == "__main__":
    main(*sys.argv[1:])
