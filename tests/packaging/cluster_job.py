"""A pipeline as users write it: one topic to another, then a look at the result; submitted by the tests of the cluster.

``python cluster_job.py BROKERS SOURCE TARGET CHECKPOINT [OPTION=VALUE ...]``; the options are the sink's.
"""

import sys

from pyspark.sql import SparkSession


def main(brokers: str, source: str, target: str, checkpoint: str, *sink_options: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    messages = (
        spark.readStream.format("metaq")
        .option("brokers", brokers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        messages.select("value", "partition")
        .writeStream.format("metaq")
        .option("brokers", brokers)
        .option("topic", target)
        .options(**dict(option.split("=", 1) for option in sink_options))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copied = spark.read.format("metaq").option("brokers", brokers).option("subscribe", target).load()
    print("rows:", copied.count(), "different:", copied.select("value").distinct().count())
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    print("executors:", executors)


if __name__ == "__main__":
    main(*sys.argv[1:])
