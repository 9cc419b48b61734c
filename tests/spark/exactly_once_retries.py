"""A driver whose task is run again: copies a topic exactly once.

Usage: exactly_once_retries.py BROKERS TOPIC TARGET FOLDER. The message ``10`` fails the task that meets it, the first
time; what the task had written by then must not be seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

FAILURES_MAX = 3


def failing_once(folder: str) -> object:
    """A step of the plan that fails at one message, once."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(batch.num_rows):
                row = batch.slice(start, 1)
                value = row.column(0)[0].as_py().decode()
                met = Path(folder) / f"met-{value}"
                if value == "10" and not met.exists():
                    met.touch()
                    raise ValueError(f"message {value} cannot be handled")
                yield row

    return step


def main(brokers: str, topic: str, target: str, folder: str) -> None:
    spark = (
        SparkSession.builder.master(f"local[2,{FAILURES_MAX}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    rows = spark.readStream.format("metaq").options(brokers=brokers, subscribe=topic, startingOffsets="earliest").load()
    query = (
        rows.select("value")
        .mapInArrow(failing_once(folder), "value binary")
        .writeStream.format("metaq")
        .options(brokers=brokers, topic=target, delivery="exactly_once", blockMessages="1")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
