"""A run with AvailableNow and a lag listener, as a user would write it: the program ends when the query has.

``python lag_available_now.py BROKERS FOLDER``; the log goes to standard output.
"""

from __future__ import annotations

import logging
import sys

from pyspark.sql import SparkSession

from metaq_spark.lag.listener import MetaQLagListener


def main(brokers: str, folder: str) -> None:
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    spark = builder.master("local[2]").getOrCreate()
    rows = spark.createDataFrame([(f"a{n}",) for n in range(3)], "value string").coalesce(1)
    rows.write.format("metaq").mode("append").options(brokers=brokers, topic="a").save()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="LOG %(name)s %(message)s")
    spark.streams.addListener(MetaQLagListener({"brokers": brokers}))
    given = {"brokers": brokers, "subscribe": "a", "startingOffsets": "earliest", "maxBytesPerTrigger": "22"}
    stream = spark.readStream.format("metaq").options(**given).load().writeStream.format("noop")
    stream.option("checkpointLocation", folder).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
