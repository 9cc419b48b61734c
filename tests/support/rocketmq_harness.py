"""A scripted RocketMQ cluster, and what a driver and its tasks see of it; for stories of the source and the sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from metaq_harness import MicroBatches, Reader, Tree, no_cpu_s
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.model import Partition
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.acl import Credentials
from metaq.testing.rocketmq_server import ScriptedCluster
from metaq_spark.backends.metaq.exactly_once.plan import RUN_ID
from metaq_spark.backends.rocketmq.options import parse_sink_options, parse_source_options
from metaq_spark.backends.rocketmq.sink import RocketMQSink
from metaq_spark.backends.rocketmq.source import RocketMQSource
from metaq_spark.options.table import Use
from metaq_spark.sink.backend import BATCH_ID, QUERY_ID, WriteTask
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.stream_reader import StreamReader

QUICK = {"retryIntervalMs": "5", "connectTimeoutMs": "2000", "requestTimeoutMs": "5000"}


class RocketMQHarness(MicroBatches):
    """``broker-a`` and ``broker-b`` with two queues each of ``orders``; a run of the connector against them."""

    def __init__(
        self, brokers: Mapping[str, Sequence[int]] | None = None, *, namespace: str | None = None, **more: Any
    ) -> None:
        super().__init__()
        self.cluster = ScriptedCluster(brokers or {"broker-a": (), "broker-b": ()}, **more)
        self.namespace = namespace

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        self.cluster.create_topic("orders", queues=2)
        self.cluster.create_topic("out", queues=2)
        self.restart()
        return self

    def __exit__(self, *error: Any) -> None:
        self.pool.close()
        self.cluster.__exit__(*error)

    def restart(self, credentials: Credentials | None = None) -> None:
        """Forget what this process knew of the servers."""
        if hasattr(self, "pool"):
            self.pool.close()
        self.pool = SessionPool(Timeouts(2.0, 5.0), credentials=credentials)
        self.directory = NameServerDirectory(self.cluster.name_servers, self.pool, namespace=self.namespace)

    def put(self, queue: str, *bodies: bytes, topic: str = "orders", **more: Any) -> int:
        """Store messages in a queue, ``"a0"`` or ``"b1"``; the offset of the first."""
        return self.cluster.append(topic, Partition(f"broker-{queue[0]}", int(queue[1:])), bodies, **more)

    def raw(self, options: Mapping[str, str]) -> dict[str, str]:
        """Options with the servers' addresses and short pauses."""
        servers = ";".join(map(str, self.cluster.name_servers))
        space = {} if self.namespace is None else {"namespace": self.namespace}
        return QUICK | space | {"nameServers": servers} | dict(options)

    def source(self, use: Use, **options: str) -> RocketMQSource:
        """A read of ``orders``, unless another topic is given."""
        if not {"subscribe", "subscribePattern", "assign"} & options.keys():
            options["subscribe"] = "orders"
        return RocketMQSource(parse_source_options(self.raw(options), use), self.pool, self.directory, self.clock)

    def stream(self, **options: str) -> StreamReader:
        return StreamReader(self.source(Use.STREAM_READ, **options), no_cpu_s)

    def batch(self, **options: str) -> list[dict[str, Any]]:
        reader = BatchReader(self.source(Use.BATCH_READ, **options))
        return self.rows(reader, reader.partitions())

    def rows(self, reader: Reader, partitions: Sequence[InputPartition]) -> list[dict[str, Any]]:
        return [row for batch in self.read(reader, partitions) for row in batch.to_pylist()]

    def drained(self, reader: StreamReader, position: Tree | None = None) -> tuple[Tree, list[bytes]]:
        """As ``drain``, with all that was read sorted: the queues of a micro-batch have no order."""
        position, batches = self.drain(reader, position)
        return position, sorted(body for batch in batches for body in batch)

    def sink(self, schema: StructType, *, streaming: bool = False, **options: str) -> RocketMQSink:
        """A write to ``out``, unless another topic is given; ``""`` = where rows say."""
        named = {"topic": "out"} | options
        given = self.raw({name: value for name, value in named.items() if value})
        use = Use.STREAM_WRITE if streaming else Use.BATCH_WRITE
        return RocketMQSink(
            parse_sink_options(given, use), schema, streaming=streaming, pool=self.pool, directory=self.directory
        )

    def stored(self, topic: str = "out") -> dict[str, list[dict[str, Any]]]:
        """All messages of a topic by queue, read by the connector itself."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.batch(subscribe=topic):
            found.setdefault(f"{row['broker_name']}:{row['queue_id']}", []).append(row)
        return found


def stream_task(
    number: int = 0, *, query: str = "q1", batch: int = 0, attempt: int = 0, run: str | None = None
) -> WriteTask:
    properties = {QUERY_ID: query, BATCH_ID: str(batch)} | ({} if run is None else {RUN_ID: run})
    return WriteTask(number, attempt, properties.get)
