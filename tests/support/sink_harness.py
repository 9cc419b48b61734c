"""Two brokers in memory, and tasks of the sink that write to them."""

from __future__ import annotations

import pickle

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from metaq.backends.metaq.pool import SessionPool
from metaq.formats.frames import walk
from metaq.model import Address, Message
from metaq.testing.manual_clock import ManualClock
from metaq.testing.memory import MemoryBroker, MemoryTransport
from metaq_spark.backends.metaq.exactly_once.commit import WrittenMessages
from metaq_spark.backends.metaq.options import parse_sink_options
from metaq_spark.backends.metaq.sink import MetaQSink, RouteMemory
from metaq_spark.options.table import Use
from metaq_spark.sink.task import write_batches

ADDRESSES = [Address("b0", 1), Address("b1", 1)]
TYPES = {"value": BinaryType(), "attribute": StringType(), "topic": StringType(), "partition": IntegerType()}
TYPES |= {"key": StringType()}


class Harness:
    """Two brokers with two and one partitions of ``orders``, and tasks that write to them."""

    def __init__(self, extensions: frozenset[str] | None = None) -> None:
        more = {} if extensions is None else {"extensions": extensions}
        self.brokers = [MemoryBroker({"orders": n, "carts": 1}, broker_id=2 - n, **more) for n in (2, 1)]
        self.clock = ManualClock()
        transport = MemoryTransport(dict(zip(ADDRESSES, self.brokers, strict=True)), self.clock)
        self.pool = SessionPool(transport=transport, clock=self.clock)
        self.routes = RouteMemory(self.pool, self.clock)
        self.transport, self.brokers_named = transport, ",".join(map(str, ADDRESSES))

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
