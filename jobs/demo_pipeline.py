"""What the demo does between its input and its result, step by step; ``demo`` shows it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import error_rates
import lines_to_topic
from demo_check import Comparison, Count, compare
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from metaq.client.consumer import Consumer
from metaq.client.pool import SessionPool
from metaq.directory.fixed import FixedDirectory
from metaq.model import Address
from metaq.wire.text.frames import HEADER_BYTES

LINES, COPIED, RATES = "lines", "copied", "error_rates"
BLOCK_BYTES = 64 << 10
BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class Input:
    """The files to send, in the order in which they are sent, and what they hold."""

    source: str
    files: tuple[Path, ...]
    held: Count


class Pipeline:
    """Input, broker and Spark, and what is done with them."""

    def __init__(self, spark: SparkSession, address: Address, folder: Path, given: Input) -> None:
        self._spark, self._address, self._folder, self._input = spark, address, folder, given
        self._pool = SessionPool()
        self._directory = FixedDirectory([address], self._pool)

    def send(self) -> None:
        """Send the lines of the input to the topic ``lines``."""
        lines_to_topic.run(
            self._spark,
            argparse.Namespace(
                input=self._input.source, brokers=str(self._address), topic=LINES, block_bytes=BLOCK_BYTES
            ),
        )

    def stream(self) -> None:
        """Run two streaming queries until they have read all of ``lines``: one copies it, one counts its errors."""
        messages = (
            self._spark.readStream.format("metaq")
            .option("brokers", str(self._address))
            .option("subscribe", LINES)
            .option("startingOffsets", "earliest")
            .option("maxBytesPerTrigger", BATCH_BYTES)
            .load()
        )
        same_place = messages.select("partition", "value")
        copying = same_place.writeStream.format("metaq").option("brokers", str(self._address)).option("topic", COPIED)
        # A table in memory, always complete, to show at the end; the job error_rates sends each window to a topic.
        rates = error_rates.count_errors(error_rates.parse_lines(messages), "5 minutes", "10 minutes")
        counting = rates.writeStream.format("memory").outputMode("complete").queryName(RATES)
        queries = [
            writer.option("checkpointLocation", str(self._folder / name)).trigger(availableNow=True).start()
            for name, writer in {"copying": copying, "counting": counting}.items()
        ]
        for query in queries:
            query.awaitTermination()

    def share_in(self, topic: str) -> float:
        """How much of the input, 0..1, the broker has in ``topic``. A message is stored behind a header."""
        stored = sum(len(there) for there in self._directory.ends([topic]).values())
        expected = self._input.held.bytes + HEADER_BYTES * self._input.held.lines
        return stored / expected if expected else 1.0

    def compare(self) -> Comparison:
        """Read the topic ``copied``, without Spark, and compare it with the input."""
        consumer, filled = Consumer(self._directory, self._pool), self._directory.partitions(COPIED)
        came_out = [
            (frame.message.payload for frame in consumer.messages(COPIED, partition))
            if partition in filled
            else iter(())
            for partition in self._directory.writable(COPIED)
        ]
        return compare(self._input.files, came_out, BLOCK_BYTES)

    def error_table(self) -> list[Row]:
        """``component``, ``lines`` and ``errors``, the highest error rate first."""
        by_component = self._spark.table(RATES).groupBy("component").agg(F.sum("lines"), F.sum("errors"))
        counted = by_component.toDF("component", "lines", "errors").collect()
        return sorted(counted, key=lambda row: (-row.errors / row.lines, row.component))
