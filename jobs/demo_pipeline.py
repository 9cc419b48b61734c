"""What the demo does between its input and its result, step by step; ``demo`` shows it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import error_rates
import lines_to_topic
from demo_check import Comparison, Count, compare
from pyspark.sql import DataFrame, DataFrameWriter, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from metaq.client.consumer import Consumer
from metaq.client.pool import SessionPool
from metaq.directory.fixed import FixedDirectory
from metaq.model import Address
from metaq.wire.text.frames import HEADER_BYTES

LINES, COPIED, RATES = "lines", "copied", "error_rates"
BLOCK_BYTES = 64 << 10
BATCH_BYTES = 8 << 20

Writer = TypeVar("Writer", DataFrameWriter, DataStreamWriter)


@dataclass(frozen=True)
class Input:
    """The files to send, in the order in which they are sent, and what they hold; ``name`` is for people."""

    name: str
    source: str
    files: tuple[Path, ...]
    held: Count


class Pipeline:
    """Input, broker and Spark, and what is done with them."""

    def __init__(self, spark: SparkSession, address: Address, folder: Path, given: Input) -> None:
        self._spark, self._address, self._folder, self._input = spark, address, folder, given
        self._pool = SessionPool()
        self._directory = FixedDirectory([address], self._pool)

    def warm_up(self) -> None:
        """Send one message and stream it on: Spark starts its Python processes, and they compile what they need."""
        one = self._spark.createDataFrame([(0, b"warm")], lines_to_topic.LINE_SCHEMA)
        self._to_topic(one.write.format("metaq").mode("append"), "warm").save()
        self._copy("warm", "warmer").awaitTermination()

    def send(self) -> None:
        """Send the lines of the input to the topic ``lines``."""
        job = argparse.Namespace(
            input=self._input.source, brokers=str(self._address), topic=LINES, block_bytes=BLOCK_BYTES
        )
        lines_to_topic.run(self._spark, job)

    def stream(self) -> None:
        """Stream ``lines`` to ``copied`` until everything that is there has been read."""
        self._copy(LINES, COPIED).awaitTermination()

    def count_errors(self) -> None:
        """Stream ``copied`` into a table of errors by component and window.

        The table is in memory and always complete, to be shown at the end; the job itself sends each window to a topic.
        """
        rates = error_rates.count_errors(error_rates.parse_lines(self._stream_of(COPIED)), "5 minutes", "10 minutes")
        self._start(
            rates.writeStream.format("memory").outputMode("complete").queryName(RATES), RATES
        ).awaitTermination()

    def _copy(self, source: str, target: str) -> StreamingQuery:
        """Every message to the same partition of another topic."""
        messages = self._stream_of(source).select("partition", "value")
        return self._start(self._to_topic(messages.writeStream.format("metaq"), target), target)

    def _stream_of(self, topic: str) -> DataFrame:
        reader = self._spark.readStream.format("metaq").option("brokers", str(self._address))
        reader = reader.option("startingOffsets", "earliest").option("maxBytesPerTrigger", BATCH_BYTES)
        return reader.option("subscribe", topic).load()

    def _to_topic(self, writer: Writer, topic: str) -> Writer:
        return writer.option("brokers", str(self._address)).option("topic", topic)

    def _start(self, writer: DataStreamWriter, name: str) -> StreamingQuery:
        checkpoint = str(self._folder / "checkpoints" / name)
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

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
