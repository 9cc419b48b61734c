"""A write to MetaQ: implements ``sink.backend.Sink``, including at-least-once delivery.

The writable partitions of a topic are cached for a few seconds: Spark creates a new writer for every micro-batch,
twice, and asking the brokers each time would cost too much. New partitions of a topic are noticed when the cache
expires.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.model import Address, Partition, TopicPartition, Xid
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.retry import ONCE, RetryPolicy
from metaq_spark.backends.metaq.cluster import (
    ROUTE_AGE_S_MAX,
    Cluster,
    RetryingSessions,
    SessionPool,
    pool_with,
)
from metaq_spark.backends.metaq.exactly_once.commit import MetaQTransaction, WrittenMessages
from metaq_spark.backends.metaq.exactly_once.contents import Count
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.task import begin_attempt
from metaq_spark.backends.metaq.options import BrokerOptions, SinkOptions
from metaq_spark.columns.blocks import EncodedBlock, OpenBlock
from metaq_spark.columns.encode import FrameEncoder
from metaq_spark.columns.headers import attributes_of_headers
from metaq_spark.columns.row_layout import HEADERS
from metaq_spark.errors import PartitionAway
from metaq_spark.sink.backend import WriteTask
from metaq_spark.sink.columns import ColumnTypes, SinkColumn, SinkColumns, find_sink_columns
from metaq_spark.sink.first_look import FirstLook, wait_for_offer

SINK_COLUMNS: Final[ColumnTypes] = {
    "value": SinkColumn(
        (BinaryType, StringType), "the payload; required, and never null. A string is written as UTF-8"
    ),
    "attribute": SinkColumn((StringType,), "null or no column: a message without an attribute"),
    "headers": SinkColumn(
        (ArrayType,),
        "instead of `attribute`: headers as Kafka's sink takes them, which become its pairs `k=v;k2=v2`",
        HEADERS,
    ),
    "topic": SinkColumn((StringType,), "needed without the option `topic`, which takes precedence"),
    "partition": SinkColumn((IntegerType,), "which partition, see below; null: by key or in turn"),
    "key": SinkColumn(
        (BinaryType, StringType, IntegerType, LongType),
        "which partition, if none is given; null: in turn. Not stored",
    ),
}
"""Every column of a write. Only ``value`` is required."""


class BlockPuts(Protocol):
    """The delivery of a task's blocks to their brokers, and its guarantees."""

    def put(self, target: TopicPartition, address: Address, block: EncodedBlock) -> None:
        """Send a block to a partition of the broker at ``address``. Blocks of a partition keep their order.

        Raises:
            MetaqError: This block or an older one was refused or got no answer.
        """

    def finish(self) -> tuple[Xid, ...]:
        """Wait until every block is safe; the branches that the driver has to commit, in order. Raises as ``put``."""

    def give_up(self, error: BaseException) -> None:
        """Release the connections, because the task failed with ``error``."""


class MetaQSink:
    """Writes with ``options``. The driver looks up everything that a task needs, and pickles it.

    ``pool`` and ``routes`` are for tests.

    Raises:
        ColumnError: The DataFrame's columns are not valid for a write.
        TopicNotFound: No broker accepts the topic of the option.
        ExactlyOnceError: A broker cannot take part in exactly-once delivery.
        ConnectionFailed, DeadlineExceeded: A broker could not be asked.
    """

    def __init__(
        self,
        options: SinkOptions,
        schema: StructType,
        *,
        streaming: bool,
        pool: SessionPool | None = None,
        routes: RouteMemory | None = None,
    ) -> None:
        self.options = self.reach = options
        self.pool, self.routes = pool, routes
        self.columns: SinkColumns = find_sink_columns(schema, options.topic, SINK_COLUMNS)
        topic, memory = options.topic, routes or shared_routes()
        self._route: FirstLook[Route] = FirstLook({})
        if topic is not None:
            self._route = FirstLook.of(lambda: memory.find(options, topic), streaming=streaming)
        self.transaction = MetaQTransaction(options, streaming) if options.exactly_once else None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without process-local objects."""
        return self.__dict__ | {"pool": None, "routes": None}

    def begin(self, task: WriteTask) -> MetaQDelivery:
        pool = self.pool or pool_with(self.options.reach)
        routes = TaskRoutes(self.options, self._route, self.routes or shared_routes(), begun=task.follows_others)
        if self.transaction is None:
            puts = AcknowledgedPuts(self.options, pool)
            return MetaQDelivery(self.columns, routes, puts, task_number=task.number)
        plan, sessions = self.transaction.plan(begun=task.follows_others), RetryingSessions(self.options, pool)
        attempt = begin_attempt(plan, self.options, task, sessions)
        return MetaQDelivery(self.columns, routes, attempt.puts, attempt.batch, attempt.run, task.number)


class TaskRoutes:
    """The writable partitions of a task's topics; the topic of the option is known, others are looked up once.

    ``begun``: the query has written before, so wait for brokers that are away.
    """

    def __init__(self, options: SinkOptions, known: FirstLook[Route], memory: RouteMemory, *, begun: bool) -> None:
        self.options, self._known, self._memory, self._begun = options, known, memory, begun
        self._routes: dict[str, Route] = {}

    def partitions_of(self, topic: str) -> Sequence[Partition]:
        if topic not in self._routes:
            known = self._known.get(lambda: self._find(topic), begun=self._begun)
            self._routes[topic] = known or self._find(topic)
        return self.options.ordered_partitions or list(self._routes[topic])

    def _find(self, topic: str) -> Route:
        options, memory = self.options, self._memory
        if not self._begun:
            return memory.find(options, topic)
        return wait_for_offer(lambda: memory.find(options, topic, ONCE), options.waiting_policy, memory.clock)

    def address_of(self, target: TopicPartition) -> Address:
        """The broker of a partition of ``partitions_of``.

        Raises:
            PartitionAway: No broker takes messages for it now.
        """
        return address_of(target, self._routes[target.topic])


class MetaQDelivery:
    """Implements ``TaskDelivery`` on ``puts``. ``batch`` and ``run`` of an exactly-once write are reported with it."""

    def __init__(
        self,
        columns: SinkColumns,
        routes: TaskRoutes,
        puts: BlockPuts,
        batch: BatchName | None = None,
        run: str = "",
        task_number: int = 0,
    ) -> None:
        self._columns, self._routes, self._puts, self._input = columns, routes, puts, f"the input of task {task_number}"
        self._batch, self._run = batch, run
        self._count = self._size = 0
        self._counts: dict[TopicPartition, Count] = {}
        self.partitions_of, self.require = routes.partitions_of, routes.address_of

    def encoder(self, batch: pa.RecordBatch, first_row: int) -> FrameEncoder:
        others = self._columns.others
        attribute = None
        if "attribute" in others:
            attribute = batch.column(others["attribute"])
        elif "headers" in others:
            attribute = attributes_of_headers(batch.column(others["headers"]), self._input, first_row)
        return FrameEncoder(batch.column(self._columns.value), attribute)

    def open_block(self) -> OpenBlock:
        return OpenBlock(self._routes.options.block_bytes, self._routes.options.block_messages)

    def put(self, target: TopicPartition, block: EncodedBlock) -> None:
        self._puts.put(target, self._routes.address_of(target), block)
        self._count, self._size = self._count + block.count, self._size + len(block.data)
        if self._batch is not None:
            self._counts[target] = self._counts.get(target, Count()).plus(Count(block.count, block.fingerprint))

    def finish(self) -> WrittenMessages:
        branches = self._puts.finish()
        return WrittenMessages(self._count, self._size, self._batch, branches, self._counts, self._run)

    def give_up(self, error: BaseException) -> None:
        self._puts.give_up(error)


class AcknowledgedPuts:
    """Every block is stored when ``finish`` returns; some may be stored twice, and blocks of a failed task stay."""

    def __init__(self, options: SinkOptions, pool: SessionPool) -> None:
        self._options, self._pool = options, pool
        self._sessions = ExitStack()
        self._writers: dict[Address, BatchWriter] = {}

    def put(self, target: TopicPartition, address: Address, block: EncodedBlock) -> None:
        writer = self._writers.get(address) or self._connect(target, address)
        writer.write(target.partition.index, block.data, block.count, target.topic)

    def _connect(self, target: TopicPartition, address: Address) -> BatchWriter:
        options, pool = self._options, self._pool
        sessions = RetryingSessions(options, pool, pool.clock)
        session = self._sessions.enter_context(sessions.lease(address, target.partition.broker_id, to_write=True))
        self._writers[address] = BatchWriter(session, target.topic, policy=sessions.policy)
        return self._writers[address]

    def finish(self) -> tuple[Xid, ...]:
        """Wait until all blocks are stored; there are no branches to commit."""
        for writer in self._writers.values():
            writer.flush()
        self._sessions.close()
        return ()

    def give_up(self, error: BaseException) -> None:
        self._sessions.__exit__(type(error), error, error.__traceback__)


Route = dict[Partition, Address]
"""A topic's writable partitions in order, each with its broker."""


class RouteMemory:
    """One for each process; see ``shared_routes``."""

    def __init__(self, pool: SessionPool | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._pool, self.clock = pool, clock
        self._known: dict[tuple[tuple[str, ...], str], tuple[float, Route]] = {}

    def find(self, options: BrokerOptions, topic: str, policy: RetryPolicy | None = None) -> Route:
        """Return the route of ``topic``, at most ``ROUTE_AGE_S_MAX`` old. ``policy``: see ``Cluster``.

        Raises:
            TopicNotFound: No broker accepts the topic.
            ConnectionFailed, DeadlineExceeded: A broker could not be asked.
        """
        key, now_s = (options.places, topic), self.clock.monotonic()
        since_s, route = self._known.get(key, (-ROUTE_AGE_S_MAX, {}))
        if not route or now_s - since_s >= ROUTE_AGE_S_MAX:
            route = Cluster(options, self._pool, self.clock, policy).writable(topic)
            self._known[key] = now_s, route
        return route


def address_of(target: TopicPartition, route: Route) -> Address:
    """Return the broker that accepts messages for ``target``, whose topic has this route.

    Raises:
        PartitionAway: None does; the row was routed by ``orderedPartitions``, which may name absent partitions.
    """
    if target.partition not in route:
        raise PartitionAway(str(target), [str(partition) for partition in route])
    return route[target.partition]


_SHARED: Final = RouteMemory()


def shared_routes() -> RouteMemory:
    return _SHARED
