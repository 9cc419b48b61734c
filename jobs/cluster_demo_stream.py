"""The pipeline of the cluster demo: one topic to another, each message stamped with its CRC-32, exactly once.

    SPARK_CONF_DIR=spark-conf spark-submit jobs/cluster_demo_stream.py \\
        --zookeeper 127.0.0.1:2181/meta --source orders --target checked --checkpoint progress/checked

It stops when all messages that existed at its start are written. When run again, it continues from its checkpoint.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

RETRIES = 10
"""Some fifty seconds: longer than the restart of a crashed broker takes."""


def transform(messages: DataFrame) -> DataFrame:
    """Keep ``value``; ``attribute`` becomes its CRC-32, eight hexadecimal digits."""
    return messages.select("value", F.format_string("%08x", F.crc32("value")).alias("attribute"))


def run(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    given = {"zookeeper": arguments.zookeeper, "retries": RETRIES}
    reading = {"subscribe": arguments.source, "startingOffsets": "earliest"}
    limit = {"maxBytesPerTrigger": arguments.max_bytes_per_batch}
    messages = spark.readStream.format("metaq").options(**given, **reading, **limit).load()
    return (
        transform(messages)
        .writeStream.format("metaq")
        .options(topic=arguments.target, delivery="exactly_once", **given)
        .option("checkpointLocation", arguments.checkpoint)
        .queryName("cluster_demo")
        .trigger(availableNow=True)
        .start()
    )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Stream one topic to another, exactly once.")
    parser.add_argument("--zookeeper", required=True, help="where brokers register, host:port/root")
    parser.add_argument("--source", required=True, help="topic to read")
    parser.add_argument("--target", required=True, help="topic to write")
    parser.add_argument("--checkpoint", required=True, help="folder or URI for Spark's progress")
    parser.add_argument("--max-bytes-per-batch", default="16m", help="size of a micro-batch (default: 16m)")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    spark = SparkSession.builder.appName("metaq-cluster-demo").getOrCreate()
    run(spark, arguments).awaitTermination()


if __name__ == "__main__":
    main()
