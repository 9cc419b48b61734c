"""A driver to be killed: reads a topic as a stream into Parquet, in small batches.

Usage: stream_to_parquet.py BROKERS TOPIC FOLDER
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

COLUMNS = ("cast(value as string) value", "partition", "offset")


def main(brokers: str, topic: str, folder: str) -> None:
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
        .selectExpr(*COLUMNS)
    )
    writer = rows.writeStream.format("parquet").options(
        path=f"{folder}/rows", checkpointLocation=f"{folder}/checkpoint"
    )
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
