"""Two sources in one query, with a lag listener: by Spark Connect with ``connect``, in the driver otherwise.

``python lag_pipeline.py BROKERS FOLDER [connect]``; prints the lines of the log, and the gauges while and after the
query runs.
"""

from __future__ import annotations

import logging
import sys

from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import DataFrame, SparkSession

from metaq_spark.lag.listener import MetaQLagListener

DEADLINE_S = 60.0


def main(brokers: str, folder: str, kind: str = "classic") -> None:
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    builder = builder.remote("local[2]") if kind == "connect" else builder.master("local[2]")
    spark = builder.getOrCreate()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="LOG %(name)s %(message)s")
    registry = CollectorRegistry()
    listener = MetaQLagListener({"brokers": brokers}, registry=registry)
    spark.streams.addListener(listener)
    try:
        print("session:", type(spark).__module__)
        for topic, count in (("a", 3), ("b", 2)):
            rows = spark.createDataFrame([(f"{topic}{n}",) for n in range(count)], "value string").coalesce(1)
            rows.write.format("metaq").mode("append").options(brokers=brokers, topic=topic).save()

        def stream(topic: str, **options: str) -> DataFrame:
            given = {"brokers": brokers, "subscribe": topic, "startingOffsets": "earliest", **options}
            return spark.readStream.format("metaq").options(**given).load().select("value")

        both = stream("a", maxBytesPerTrigger="22").union(stream("b"))
        query = both.writeStream.format("noop").queryName("both").option("checkpointLocation", folder).start()
        query.processAllAvailable()
        while not (listener.drain(DEADLINE_S) and b'topic="a"} 0.0' in generate_latest(registry)):
            query.awaitTermination(0.1)
        print(
            *[f"WHILE {line}" for line in generate_latest(registry).decode().splitlines() if "both" in line], sep="\n"
        )
        query.stop()
        while b"both" in generate_latest(registry):
            query.awaitTermination(0.1)
        print("AFTER", [line for line in generate_latest(registry).decode().splitlines() if "both" in line])
    finally:
        spark.streams.removeListener(listener)
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
