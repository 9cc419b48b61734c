"""One task of a write: rows in, messages out.

Rows are grouped by partition and encoded into blocks, over several record batches if they are small; full blocks are
handed to a ``Delivery``, which sends them over one connection for each broker, whatever the number of topics, several
under way at once. Nothing is reported before every block is safe: acknowledged, or prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from metaq.model import Address, Partition, TopicPartition, Xid
from metaq_spark.backends.metaq.acknowledged_puts import AcknowledgedPuts
from metaq_spark.backends.metaq.cluster import SessionPool, pool_with
from metaq_spark.backends.metaq.exactly_once.contents import Count, Counts
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.plan import RUN_ID, TransactionPlan, batch_of_task
from metaq_spark.backends.metaq.exactly_once.task import TaskAttempt, TransactionalPuts, branch_limits
from metaq_spark.backends.metaq.sessions import RetryingSessions
from metaq_spark.columns.blocks import Block
from metaq_spark.columns.encode import FrameEncoder
from metaq_spark.columns.memory import keep_freed_memory
from metaq_spark.garbage_collection import freeze_modules
from metaq_spark.options.parsing import SinkOptions
from metaq_spark.sink.columns import SinkColumns
from metaq_spark.sink.delivery import Delivery, UnsentPuts
from metaq_spark.sink.gathering import OpenBlocks
from metaq_spark.sink.routes import Route, RouteMemory, address_of, shared_routes
from metaq_spark.sink.routing import Router


@dataclass(frozen=True)
class WrittenMessages(WriterCommitMessage):
    """What a task has stored: how many messages, and their bytes as frames.

    Exactly-once delivery: in which branches, of which batch, by which run of the query. They are prepared, and for the
    driver to commit. ``counts`` is what they contain, or would if the batch were not written already.
    """

    message_count: int
    frame_bytes: int
    batch: BatchName | None = None
    branches: tuple[Xid, ...] = ()
    counts: Counts = field(default_factory=dict)
    run: str = ""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Everything a task needs; made on the driver. ``route`` is that of the option ``topic``, if there is one.

    ``transaction`` is ``None`` for at-least-once delivery.
    """

    options: SinkOptions
    columns: SinkColumns
    route: Route | None
    transaction: TransactionPlan | None = None


def write_batches(
    batches: Iterable[pa.RecordBatch],
    plan: SinkPlan,
    pool: SessionPool | None = None,
    routes: RouteMemory | None = None,
) -> WrittenMessages:
    """Store every row and return when all are safe.

    Raises:
        RowError: A row cannot become a message.
        TopicNotFound: A row names a topic that no broker accepts.
        PartitionAway: A row goes to a partition of ``orderedPartitions`` that no named broker offers.
        ExactlyOnceError: The batch has no name by which it could be told from others.
        MetaqError: A broker refused a block or could not be reached, even after retries.
    """
    keep_freed_memory()
    freeze_modules()
    pool = pool or pool_with(plan.options.timeouts, plan.options.tls)
    batch, run, delivery = _deliver(plan, pool)
    try:
        rows = _Rows(plan, delivery, routes or shared_routes())
        count, size = rows.send(batches)
        branches = delivery.finish()
        return WrittenMessages(count, size, batch, branches, rows.counts if batch else {}, run)
    except BaseException as error:
        delivery.give_up(error)
        raise


def _deliver(plan: SinkPlan, pool: SessionPool) -> tuple[BatchName | None, str, Delivery]:
    """The batch that this task belongs to and the run of its query, if they matter, and the way of delivery."""
    if plan.transaction is None:
        return None, "", AcknowledgedPuts(plan.options, pool)
    context = TaskContext.get()

    def local_property(name: str) -> str | None:
        return context.getLocalProperty(name) if context else None

    batch, run = batch_of_task(plan.transaction, local_property), local_property(RUN_ID) or ""
    if plan.transaction.written:
        return batch, run, UnsentPuts()
    task, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    place = TaskAttempt(batch, task, attempt)
    limits = branch_limits(plan.options, plan.transaction.timeout_s_max)
    return batch, run, TransactionalPuts(place, limits, RetryingSessions(plan.options, pool))


class _Rows:
    """Sends the rows of a task on their way."""

    def __init__(self, plan: SinkPlan, delivery: Delivery, memory: RouteMemory) -> None:
        self._plan, self._delivery, self._memory = plan, delivery, memory
        self._routes: dict[str, Route] = {}
        options = plan.options
        self._open = OpenBlocks(options.block_bytes, options.block_messages)
        self._count = self._size = 0
        self.counts: dict[TopicPartition, Count] = {}

    def send(self, batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
        """How many messages there were, and their bytes as frames."""
        router = _task_router(self._plan, self._partitions_of)
        for batch in batches:
            encoder = self._encoder(batch)
            for target, rows in router.route(batch):
                self._address_of(target)  # a row that no broker takes is told before it waits for others
                for block in encoder.append(rows, self._open.of(target)):
                    self._put(target, block)
            for target, block in self._open.surplus():
                self._put(target, block)
        for target, block in self._open.rest():
            self._put(target, block)
        return self._count, self._size

    def _put(self, target: TopicPartition, block: Block) -> None:
        self._delivery.put(target, self._address_of(target), block)
        self.counts[target] = self.counts.get(target, Count()).plus(Count(block.count, block.fingerprint))
        self._count, self._size = self._count + block.count, self._size + len(block.data)

    def _address_of(self, target: TopicPartition) -> Address:
        return address_of(target, self._routes[target.topic])

    def _encoder(self, batch: pa.RecordBatch) -> FrameEncoder:
        columns = self._plan.columns
        attribute = None if columns.attribute is None else batch.column(columns.attribute)
        return FrameEncoder(batch.column(columns.value), attribute)

    def _partitions_of(self, topic: str) -> Sequence[Partition]:
        options = self._plan.options
        if topic not in self._routes:
            self._routes[topic] = self._plan.route or self._memory.find(options, topic)
        return options.ordered_partitions or list(self._routes[topic])


def _task_router(plan: SinkPlan, partitions_of: Callable[[str], Sequence[Partition]]) -> Router:
    """A router whose turns begin at another partition for every task and every micro-batch."""
    context = TaskContext.get()
    task = context.partitionId() if context else 0
    batch_id = context.getLocalProperty("streaming.sql.batchId") if context else None
    first_turn = task + int(batch_id or 0)
    return Router(plan.columns, plan.options.topic, partitions_of, first_turn, f"the input of task {task}")
