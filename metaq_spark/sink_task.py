"""One task of a write: rows in, acknowledged messages out.

Rows are grouped by partition, encoded into blocks and written over one connection for each broker and topic, several
blocks under way at once. Nothing is reported before every block is acknowledged. A task that fails may leave messages
behind, and Spark runs it again: delivery is at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from metaq.client.batch_writer import BatchWriter
from metaq.client.pool import SessionPool
from metaq.model import Address, Partition, TopicPartition
from metaq_spark.cluster import pool_with
from metaq_spark.columns.encode import FrameEncoder
from metaq_spark.columns.memory import keep_freed_memory
from metaq_spark.options import SinkOptions
from metaq_spark.routes import Route, RouteMemory, shared_routes
from metaq_spark.routing import Router
from metaq_spark.sink_columns import SinkColumns


@dataclass(frozen=True)
class WrittenMessages(WriterCommitMessage):
    """What a task has stored: how many messages, and their bytes as frames."""

    message_count: int
    frame_bytes: int


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Everything a task needs; made on the driver. ``route`` is that of the option ``topic``, if there is one."""

    options: SinkOptions
    columns: SinkColumns
    route: Route | None


def write_batches(
    batches: Iterable[pa.RecordBatch],
    plan: SinkPlan,
    pool: SessionPool | None = None,
    routes: RouteMemory | None = None,
) -> WrittenMessages:
    """Store every row and return when all are acknowledged.

    Raises:
        RowError: A row cannot become a message.
        TopicNotFound: A row names a topic that no broker accepts.
        MetaqError: A broker refused a block or could not be reached, even after retries.
    """
    keep_freed_memory()
    with ExitStack() as sessions:
        task = _SinkTask(
            plan, sessions, pool or pool_with(plan.options.timeouts, plan.options.tls), routes or shared_routes()
        )
        return task.run(batches)


class _SinkTask:
    def __init__(self, plan: SinkPlan, sessions: ExitStack, pool: SessionPool, memory: RouteMemory) -> None:
        self._plan, self._sessions, self._pool, self._memory = plan, sessions, pool, memory
        self._routes: dict[str, Route] = {}
        self._writers: dict[tuple[Address, str], BatchWriter] = {}

    def run(self, batches: Iterable[pa.RecordBatch]) -> WrittenMessages:
        router = _task_router(self._plan, self._partitions_of)
        count = size = 0
        for batch in batches:
            encoder = self._encoder(batch)
            for target, rows in router.route(batch):
                writer = self._writer(target)
                for block in encoder.blocks(rows):
                    writer.write(target.partition.index, block.data, block.count)
                    count, size = count + block.count, size + len(block.data)
        for writer in self._writers.values():
            writer.flush()
        return WrittenMessages(count, size)

    def _encoder(self, batch: pa.RecordBatch) -> FrameEncoder:
        columns = self._plan.columns
        attribute = None if columns.attribute is None else batch.column(columns.attribute)
        return FrameEncoder(batch.column(columns.value), attribute, self._plan.options.block_bytes)

    def _partitions_of(self, topic: str) -> Sequence[Partition]:
        if topic not in self._routes:
            options = self._plan.options
            self._routes[topic] = self._plan.route or self._memory.find(options, topic)
        return list(self._routes[topic])

    def _writer(self, target: TopicPartition) -> BatchWriter:
        address = self._routes[target.topic][target.partition]
        if (address, target.topic) not in self._writers:
            options = self._plan.options
            session = self._sessions.enter_context(self._pool.lease(address))
            pause_s = options.retry_interval_ms / 1000
            writer = BatchWriter(session, target.topic, retries=options.retries, retry_interval_s=pause_s)
            self._writers[address, target.topic] = writer
        return self._writers[address, target.topic]


def _task_router(plan: SinkPlan, partitions_of: Callable[[str], Sequence[Partition]]) -> Router:
    """A router whose turns begin at another partition for every task and every micro-batch."""
    context = TaskContext.get()
    task = context.partitionId() if context else 0
    batch_id = context.getLocalProperty("streaming.sql.batchId") if context else None
    first_turn = task + int(batch_id or 0)
    return Router(plan.columns, plan.options.topic, partitions_of, first_turn, f"the input of task {task}")
