"""The interface of a sink backend: the protocols that a queue system implements.

Routing of rows, gathering them into blocks, and the steps of Spark's driver and tasks are shared. A backend knows the
writable partitions of a topic, encodes rows, and stores them.

Exactly-once delivery is a capability: a backend without it refuses the option, and its sinks have no ``transaction``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from metaq.model import Partition, TopicPartition
from metaq_spark.columns.blocks import EncodedBlock, OpenBlock
from metaq_spark.columns.encode import Int64s
from metaq_spark.options.parsing import ConnectionOptions, WriteOptions
from metaq_spark.sink.columns import SinkColumns

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets in every task of a streaming query."""

Messages = Sequence[WriterCommitMessage | None]
"""One message per task, in order of the tasks; ``None`` for a failed one."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Which run of which task of Spark's writes. ``local_property`` is the task context's."""

    number: int
    attempt: int
    local_property: Callable[[str], str | None]

    @classmethod
    def current(cls) -> WriteTask:
        """Return the current task; task 0 without properties outside a task."""
        context = TaskContext.get()
        if context is None:
            return cls(0, 0, lambda name: None)
        return cls(context.partitionId(), context.taskAttemptId(), context.getLocalProperty)

    @property
    def batch_id(self) -> int | None:
        """The micro-batch, ``None`` in a batch write."""
        text = self.local_property(BATCH_ID)
        return None if text is None else int(text)

    @property
    def follows_others(self) -> bool:
        """Whether the query has completed a micro-batch before."""
        return bool(self.batch_id)


class Encoder(Protocol):
    """Makes messages of the rows of one record batch."""

    def append(self, rows: Int64s, block: OpenBlock) -> Iterator[EncodedBlock]:
        """Append the messages of ``rows`` to ``block``, and yield a block each time that it is full."""


class TaskDelivery(Protocol):
    """Takes the blocks of one task. ``finish`` or ``give_up`` is called once, at the end."""

    def partitions_of(self, topic: str) -> Sequence[Partition]:
        """The list that partition numbers and keys count in, at least one; the same during the task.

        Raises:
            TopicNotFound: No broker accepts the topic.
        """

    def require(self, target: TopicPartition) -> None:
        """Check that a broker takes messages for ``target`` now.

        Raises:
            PartitionAway: None does.
        """

    def encoder(self, batch: pa.RecordBatch, first_row: int) -> Encoder:
        """Return an encoder for ``batch``, whose first row is number ``first_row`` (from 0) of the task."""

    def open_block(self) -> OpenBlock:
        """Return an empty block with the options' limits."""

    def put(self, target: TopicPartition, block: EncodedBlock) -> None:
        """Send a block. Blocks of a partition keep their order.

        Raises:
            MetaqError: This block or an older one was refused or got no answer.
        """

    def finish(self) -> WriterCommitMessage:
        """Wait until every block is acknowledged or prepared; return the message for the driver. Raises as ``put``."""

    def give_up(self, error: BaseException) -> None:
        """Release the connections, because the task failed with ``error``."""


class SinkTransaction(Protocol):
    """The end of an exactly-once write, on the driver."""

    def commit(self, messages: Messages, batch_id: int | None) -> None:
        """Decide the batch that the tasks have prepared, and make it readable. ``batch_id``: of a micro-batch.

        Raises:
            MetaqError: A broker refused or could not be asked. The next run finishes the batch.
        """

    def abort(self) -> None:
        """Undo a failed batch write, if that is still possible.

        Raises:
            MetaqError: A broker could not be asked.
        """


class Sink(Protocol):
    """A queue system as one writer sees it; made on the driver and pickled with the writer to the tasks."""

    @property
    def options(self) -> WriteOptions:
        """The options of the write."""

    @property
    def reach(self) -> ConnectionOptions:
        """The connection options of the brokers, with advice if one is away."""

    @property
    def columns(self) -> SinkColumns:
        """Where the columns are in the DataFrame, when they have been checked."""

    @property
    def transaction(self) -> SinkTransaction | None:
        """``None`` for at-least-once delivery."""

    def begin(self, task: WriteTask) -> TaskDelivery:
        """The delivery of one task attempt.

        Raises:
            ExactlyOnceError: The batch has no name that distinguishes it from others.
        """
