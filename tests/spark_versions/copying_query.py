"""One run of a query that copies ``steps`` to ``copies``, exactly once and a few messages at a time.

Usage: copying_query.py SERVERS CHECKPOINT. Ends when all there is has been copied.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

LIMIT = 7


def main(servers: str, checkpoint: str) -> None:
    spark: SparkSession = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    reader = spark.readStream.format("metaq").options(brokers=servers, subscribe="steps", startingOffsets="earliest")
    rows = reader.option("maxOffsetsPerTrigger", LIMIT).load().select("value", "attribute")
    writer = rows.writeStream.format("metaq").options(brokers=servers, topic="copies", delivery="exactly_once")
    query = writer.option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
