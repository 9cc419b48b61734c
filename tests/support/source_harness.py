"""Two brokers in memory, and what a driver and its tasks see of them; for stories of the source."""

from __future__ import annotations

from typing import Any

from micro_batches import MicroBatches, Tree

from metaq.backends.metaq.pool import SessionPool
from metaq.formats.frames import encode_body, encode_frame
from metaq.formats.message_id import IdRange
from metaq.model import Address, Message
from metaq.protocols.text.commands import Command
from metaq.testing.manual_clock import ManualClock
from metaq.testing.memory import MemoryBroker, MemoryTransport
from metaq_spark.backends.metaq.options import SourceOptions, parse_source_options
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.stream_reader import StreamReader

ADDRESSES = [Address("b0", 1), Address("b1", 1)]
NO_EXTENSIONS: frozenset[str] = frozenset()


class Harness(MicroBatches):
    """Two brokers, 0 and 1, with ``orders`` of two partitions each, or of so many, and ``carts`` of one."""

    def __init__(self, orders: int = 2, **settings: Any) -> None:
        self.brokers = [MemoryBroker({"orders": orders, "carts": 1}, broker_id=n, **settings) for n in (0, 1)]
        self.clock = ManualClock()
        transport = MemoryTransport(dict(zip(ADDRESSES, self.brokers, strict=True)), self.clock)
        self.pool = SessionPool(transport=transport, clock=self.clock)

    def put(self, topic: str, broker: int, index: int, *payloads: bytes, at_ms: int | None = None) -> int:
        """Append one message each, given to the broker ``at_ms``; returns the partition's end."""
        store = self.brokers[broker].partition(topic, index)
        message_id = 1 if at_ms is None else IdRange(at_ms, 0, 1, broker).first
        for payload in payloads:
            store.append(encode_frame(message_id, *encode_body(Message(payload))))
        return store.end

    def options(self, use: Use, **options: str) -> SourceOptions:
        """Options of a read of ``orders`` at both brokers, unless others are given."""
        given = {"brokers": ",".join(map(str, ADDRESSES))} | options
        if not {"subscribe", "subscribePattern", "assign"} & options.keys():
            given["subscribe"] = "orders"
        return parse_source_options(given, use)

    def stream(self, **options: str) -> StreamReader:
        """A new run of a streaming query."""
        return StreamReader(MetaQSource(self.options(Use.STREAM_READ, **options), self.pool, self.clock))

    def batch(self, **options: str) -> list[bytes]:
        """The payloads of a batch read."""
        reader = BatchReader(MetaQSource(self.options(Use.BATCH_READ, **options), self.pool, self.clock))
        return self.values(reader, reader.partitions())

    def replay(self, reader: StreamReader, start: Tree, end: Tree) -> list[bytes]:
        """What the tasks of a batch between two offsets read, in a second copy of the reader."""
        tasks = StreamReader(MetaQSource(reader._source.options, self.pool, self.clock, reader._source.groups))
        return self.values(tasks, reader.partitions(start, end))

    def available_now(self, position: Tree | None = None, **options: str) -> tuple[Tree, list[list[bytes]]]:
        """A run with the trigger AvailableNow, as Spark makes it."""
        reader = self.stream(**{"startingOffsets": "earliest"} | options)
        reader.prepareForTriggerAvailableNow()
        return self.drain(reader, position)

    def count(self, kind: type[Command]) -> int:
        """How many commands of a kind the brokers were sent."""
        return sum(isinstance(command, kind) for broker in self.brokers for command in broker.commands)
