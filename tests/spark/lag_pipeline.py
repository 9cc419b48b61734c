"""Two sources in one query, with a lag listener, in a session that is given: of a driver, or of a client of Connect."""

from __future__ import annotations

import sys

from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import DataFrame, SparkSession

from metaq_spark.lag.listener import MetaQLagListener

DEADLINE_S = 60.0


def follow(spark: SparkSession, brokers: str, folder: str) -> None:
    """Print the gauges while and after the query ``both`` runs."""
    registry = CollectorRegistry()
    listener = MetaQLagListener({"brokers": brokers}, registry=registry)
    spark.streams.addListener(listener)
    try:
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
        sys.stdout.flush()
    finally:
        spark.streams.removeListener(listener)


def check_figures(printed: str, logged: list[str]) -> None:
    """Check what ``follow`` has printed, and the lines of the listener's log."""
    assert "query=both batch=0 lag_bytes=44 lag_messages=2 lag_seconds=" in logged[0]
    assert "behind=1 furthest=a/0-0" in logged[0]
    assert "query=both batch=2 lag_bytes=0 lag_messages=0 lag_seconds=0.0 partitions=2 behind=0" in logged[-1]
    for topic in "ab":
        for unit in ("bytes", "messages", "seconds"):
            gauge = f'WHILE metaq_spark_lag_{unit}{{partition="0-0",query="both",topic="{topic}"}} 0.0'
            assert gauge in printed
    assert "AFTER []" in printed
