"""The steps of the demo between its input and its result; ``demo`` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import error_rates
import lines_to_topic
from demo_check import Comparison, Count, compare
from demo_protocols import DemoProtocol
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from metaq.backends.metaq.pool import shared_pool
from metaq.client.consumer import Consumer
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address

PARTITIONS = 2
LINES, COPIED, RATES = "lines", "copied", "error_rates"
BLOCK_BYTES = 64 << 10
BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class Input:
    """The files to send in order, and their counts; ``name`` is for people."""

    name: str
    source: str
    files: tuple[Path, ...]
    available: Count


class Pipeline:
    """The steps on input, broker and Spark. ``address`` is for MetaQ's clients."""

    def __init__(
        self, spark: SparkSession, address: Address, protocol: DemoProtocol, folder: Path, given: Input
    ) -> None:
        self._spark, self._protocol, self._folder, self._input = spark, protocol, folder, given
        self._pool = shared_pool()
        self._directory = FixedDirectory([address], self._pool)

    def warm_up(self) -> None:
        """Create the topics and stream a line, so that Spark starts its Python processes and they compile what they
        need.
        """
        line = self._folder / "warm.log"
        line.write_bytes(b"warm")
        self._protocol.make(["warm", "warmer", LINES, COPIED], PARTITIONS)
        self._send(str(line), "warm")
        self._copy("warm", "warmer").awaitTermination()

    def send(self) -> None:
        """Send the lines of the input to the topic ``lines``."""
        self._send(self._input.source, LINES)

    def stream(self) -> None:
        """Stream ``lines`` to ``copied`` until all messages have been read."""
        self._copy(LINES, COPIED).awaitTermination()

    def count_errors(self) -> None:
        """Stream ``copied`` into a table of errors by component and window.

        The table is in memory and complete after each batch, to be shown at the end; the job itself sends each window
        to a topic.
        """
        rates = error_rates.count_errors(error_rates.parse_lines(self._lines_of(COPIED)), "5 minutes", "10 minutes")
        table = rates.writeStream.format("memory").outputMode("complete").queryName(RATES)
        self._start(table, RATES).awaitTermination()

    def _send(self, source: str, topic: str) -> None:
        job = [source, *self._protocol.argument, "--topic", topic, "--block-bytes", str(BLOCK_BYTES)]
        lines_to_topic.run(self._spark, lines_to_topic.parse_arguments(job))

    def _copy(self, source: str, target: str) -> StreamingQuery:
        """Copy every message to the same partition of another topic."""
        protocol = self._protocol
        messages = self._stream_of(source).select(F.col(protocol.column).alias(protocol.number), "value")
        writer = messages.writeStream.format(protocol.system).options(**protocol.options).option("topic", target)
        return self._start(writer, target)

    def _stream_of(self, topic: str) -> DataFrame:
        reader = self._spark.readStream.format(self._protocol.system).options(**self._protocol.options)
        reader = reader.option("startingOffsets", "earliest").option("maxBytesPerTrigger", BATCH_BYTES)
        return reader.option("subscribe", topic).load()

    def _start(self, writer: DataStreamWriter, name: str) -> StreamingQuery:
        checkpoint = str(self._folder / "checkpoints" / name)
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    def _lines_of(self, topic: str) -> DataFrame:
        """Return ``value`` and ``timestamp``, the time at which the broker stored the message."""
        return self._stream_of(topic).select("value", F.col(self._protocol.time).alias("timestamp"))

    def share_in(self, topic: str) -> float:
        """Return how much of the input, 0..1, the broker has in ``topic``."""
        available = self._input.available
        return self._protocol.share_in(topic, available.lines, available.byte_count)

    def compare(self) -> Comparison:
        """Read the topic ``copied`` over MetaQ's protocol, without Spark, and compare it with the input."""
        consumer, filled = Consumer(self._directory, self._pool), self._directory.partitions(COPIED)
        came_out = [
            (frame.message.payload for frame in consumer.messages(COPIED, partition))
            if partition in filled
            else iter(())
            for partition in self._directory.writable(COPIED)
        ]
        return compare(self._input.files, came_out, BLOCK_BYTES)

    def error_table(self) -> list[Row]:
        """Return ``component``, ``lines`` and ``errors``, the highest error rate first."""
        by_component = self._spark.table(RATES).groupBy("component").agg(F.sum("lines"), F.sum("errors"))
        counted = by_component.toDF("component", "lines", "errors").collect()
        return sorted(counted, key=lambda row: (-row.errors / row.lines, row.component))
