"""A driver to be killed: reads a topic as a stream into Parquet, in small batches.

Usage: rocketmq_to_parquet.py NAME_SERVERS TOPIC FOLDER MESSAGES_A_BATCH
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(name_servers: str, topic: str, folder: str, messages: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    rows = spark.readStream.format("rocketmq").options(
        nameServers=name_servers, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=messages
    )
    writer = rows.load().writeStream.format("parquet")
    writer = writer.options(path=f"{folder}/rows", checkpointLocation=f"{folder}/checkpoint")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
