"""A stream reader as Spark drives it, micro-batch by micro-batch."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from metaq.testing.manual_clock import ManualClock
from metaq_spark.source.stream_reader import StreamReader

Tree = dict[str, Any]


class MicroBatches(ABC):
    """What the harness of each format adds to: one micro-batch after the other."""

    clock: ManualClock

    @abstractmethod
    def replay(self, reader: StreamReader, start: Tree, end: Tree) -> list[bytes]:
        """The bodies that the tasks of a batch between two offsets read."""

    def micro_batch(
        self, reader: StreamReader, start: Tree, limit: ReadLimit | None = None
    ) -> tuple[Tree, list[bytes]]:
        """Plan one micro-batch a second later, and read it as Spark does."""
        self.clock.advance(1)
        end = json.loads(json.dumps(reader.latestOffset(start, limit or reader.getDefaultReadLimit())))
        return end, self.replay(reader, start, end)

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
