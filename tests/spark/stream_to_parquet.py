"""A driver to be killed: reads a topic as a stream into Parquet, in small batches.

Usage: stream_to_parquet.py BROKERS TOPIC FOLDER {forever|now}
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(brokers: str, topic: str, folder: str, until: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    rows = (
        spark.readStream.format("metaq")
        .options(brokers=brokers, subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="3000")
        .load()
        .selectExpr("cast(value as string) value", "partition", "offset")
    )
    writer = rows.writeStream.format("parquet").options(
        path=f"{folder}/rows", checkpointLocation=f"{folder}/checkpoint"
    )
    query = (writer.trigger(availableNow=True) if until == "now" else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
