"""A stream reader as Spark drives it, micro-batch by micro-batch."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from metaq.testing.manual_clock import ManualClock
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.stream_reader import StreamReader

Tree = dict[str, Any]
Reader = BatchReader | StreamReader


class MicroBatches:
    """Reads tasks, and makes one micro-batch after the other, a second of ``clock`` apart."""

    clock: ManualClock

    def read(self, reader: Reader, partitions: Sequence[InputPartition]) -> Iterator[pa.RecordBatch]:
        """What some tasks read, in processes of their own."""
        return (batch for part in pickle.loads(pickle.dumps(partitions)) for batch in reader.read(part))

    def values(self, reader: Reader, partitions: Sequence[InputPartition]) -> list[bytes]:
        """The bodies that some tasks read."""
        return [value for batch in self.read(reader, partitions) for value in batch["value"].to_pylist()]

    def replay(self, reader: StreamReader, start: Tree, end: Tree) -> list[bytes]:
        """The bodies that the tasks of a batch between two offsets read."""
        return self.values(reader, reader.partitions(start, end))

    def micro_batch(
        self, reader: StreamReader, start: Tree, limit: ReadLimit | None = None
    ) -> tuple[Tree, list[bytes]]:
        """Plan one micro-batch a second later, and read it as Spark does."""
        self.clock.advance(1)
        end = json.loads(json.dumps(reader.latestOffset(start, limit or reader.getDefaultReadLimit())))
        return end, self.replay(reader, start, end)

    def drain(self, reader: StreamReader, position: Tree | None = None) -> tuple[Tree, list[list[bytes]]]:
        """Micro-batches until there is nothing more to do: where that is, and what each of them read, if anything."""
        position = reader.initialOffset() if position is None else position
        batches = []
        while (step := self.micro_batch(reader, position))[0] != position:
            position = step[0]
            batches += [step[1]] if step[1] else []
        return position, batches

    def five_micro_batches(self, reader: StreamReader, put: Callable[[], object]) -> list[bytes]:
        """Five micro-batches that all read something, with ``put`` called behind each; what the last one read."""
        position, values = reader.initialOffset(), list[bytes]()
        for _ in range(5):
            position, values = self.micro_batch(reader, position)
            put()
            assert values
        return values


def offsets(position: Tree, topic: str = "orders") -> dict[str, int]:
    """The offsets of a topic's partitions in a position."""
    return position["topics"].get(topic, {})
