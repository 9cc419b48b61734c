"""MetaQ brokers in memory, and what a driver and its tasks see of them; a stream reader as Spark drives it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from metaq.backends.metaq.pool import SessionPool
from metaq.formats.frames import encode_body, encode_frame, walk
from metaq.formats.message_id import IdRange
from metaq.model import Address, Message
from metaq.protocols.text.commands import Command
from metaq.testing.manual_clock import ManualClock
from metaq.testing.memory import MemoryBroker, MemoryTransport
from metaq_spark.backends.metaq.exactly_once.commit import WrittenMessages
from metaq_spark.backends.metaq.options import SourceOptions, parse_sink_options, parse_source_options
from metaq_spark.backends.metaq.sink import MetaQSink, RouteMemory
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.options.table import Use
from metaq_spark.sink.task import write_batches
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.stream_reader import StreamReader
from metaq_spark.spark_version import ReadLimit

Tree = dict[str, Any]
Reader = BatchReader | StreamReader


def no_cpu_s() -> float:
    """The processor time of a process that takes none: no rest of an idle query depends on the machine's load."""
    return 0.0


class MicroBatches:
    """Reads tasks, and makes one micro-batch after the other, a second of ``clock`` apart."""

    def __init__(self) -> None:
        self.clock = ManualClock()

    def read(self, reader: Reader, partitions: Sequence[InputPartition]) -> Iterator[pa.RecordBatch]:
        """What some tasks read, in processes of their own."""
        return (batch for part in pickle.loads(pickle.dumps(partitions)) for batch in reader.read(part))

    def values(self, reader: Reader, partitions: Sequence[InputPartition]) -> list[bytes]:
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


ADDRESSES = Address("b0", 1), Address("b1", 1)
NO_EXTENSIONS: frozenset[str] = frozenset()


class MemoryBrokers(MicroBatches):
    """Brokers in memory at ``ADDRESSES``, with a pool that reaches them."""

    def __init__(self, *brokers: MemoryBroker) -> None:
        super().__init__()
        self.brokers = brokers
        self.transport = MemoryTransport(dict(zip(ADDRESSES, brokers, strict=True)), self.clock)
        self.pool = SessionPool(transport=self.transport, clock=self.clock)


class Harness(MemoryBrokers):
    """Two brokers, 0 and 1, with ``orders`` of two partitions each, or of so many, and ``carts`` of one."""

    def __init__(self, orders: int = 2, **settings: Any) -> None:
        super().__init__(*(MemoryBroker({"orders": orders, "carts": 1}, broker_id=n, **settings) for n in (0, 1)))

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
        return StreamReader(MetaQSource(self.options(Use.STREAM_READ, **options), self.pool, self.clock), no_cpu_s)

    def batch(self, **options: str) -> list[bytes]:
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


TYPES = {"value": BinaryType(), "partition": IntegerType()} | dict.fromkeys(("attribute", "topic", "key"), StringType())


class SinkHarness(MemoryBrokers):
    """Two brokers with two and one partitions of ``orders``, and tasks that write to them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(*(MemoryBroker({"orders": 2 - n, "carts": 1}, broker_id=n, **settings) for n in (0, 1)))
        self.routes = RouteMemory(self.pool, self.clock)
        self.brokers_named = ",".join(map(str, ADDRESSES))

    def write(self, *batches: pa.RecordBatch, **options: str) -> WrittenMessages:
        settings = parse_sink_options({"brokers": self.brokers_named} | options, Use.STREAM_WRITE)
        schema = StructType([StructField(name, TYPES[name]) for name in batches[0].schema.names])
        sink = MetaQSink(settings, schema, streaming=True, pool=self.pool, routes=self.routes)
        in_task = pickle.loads(pickle.dumps(sink))
        in_task.pool, in_task.routes = self.pool, self.routes
        written = write_batches(batches, in_task)
        assert isinstance(written, WrittenMessages)
        return written

    def messages(self, broker: int, topic: str, index: int) -> list[Message]:
        store = self.brokers[broker].partitions.get((topic, index))
        return [] if store is None else [frame.message for frame in walk(store.content())]

    def payloads(self, topic: str = "orders") -> dict[str, list[bytes]]:
        found = {}
        for number, broker in enumerate(self.brokers):
            for index in sorted(index for name, index in broker.partitions if name == topic):
                found[f"{number}-{index}"] = [message.payload for message in self.messages(number, topic, index)]
        return found
