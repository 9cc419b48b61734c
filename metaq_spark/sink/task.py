"""One task of a write: rows in, messages out.

Rows are grouped by partition and encoded into blocks, over several record batches if they are small; full blocks are
passed to a ``TaskDelivery``, which sends them pipelined. The task reports only when every block is safe.

A record batch has too few rows for large blocks as soon as keys spread it over partitions. So a partition's block stays
open over record batches until it is full, unless all of them together take too much memory or have waited too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from metaq.model import TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_spark.columns.blocks import EncodedBlock, OpenBlock
from metaq_spark.garbage_collection import freeze_modules
from metaq_spark.sink.backend import Sink, TaskDelivery, WriteTask
from metaq_spark.sink.routing import Router

OPEN_BYTES_MAX: Final = 8 << 20
"""Limit on bytes of a task's open blocks between two record batches."""

OPEN_S_MAX: Final = 1.0
"""Greatest age of an open block after a record batch, in seconds: Spark may let the task wait long for the next one."""


def write_batches(batches: Iterable[pa.RecordBatch], sink: Sink) -> WriterCommitMessage:
    """Store every row and return when all are safe.

    Raises:
        RowError: A row cannot become a message.
        TopicNotFound: A row names a topic that no broker accepts.
        PartitionAway: A row goes to a partition for which no broker accepts messages.
        ExactlyOnceError: The batch has no name that distinguishes it from others.
        MetaqError: A broker refused a block or could not be reached, even after retries.
    """
    freeze_modules()
    task = WriteTask.current()
    delivery = sink.begin(task)
    try:
        _send(batches, sink, task, delivery)
        return delivery.finish()
    except BaseException as error:
        delivery.give_up(error)
        raise


def _send(batches: Iterable[pa.RecordBatch], sink: Sink, task: WriteTask, delivery: TaskDelivery) -> None:
    # The turns of rows without a partition begin at another one for every task and every micro-batch.
    first_partition = task.number + (task.batch_id or 0)
    name = f"the input of task {task.number}"
    router = Router(sink.columns, sink.options.topic, delivery.partitions_of, first_partition, name)
    open_blocks = OpenBlocks(delivery.open_block)
    first_row = 0
    for batch in batches:
        encoder = delivery.encoder(batch, first_row)
        for target, rows in router.route(batch):
            delivery.require(target)  # a row that no broker takes is refused before it waits for others
            for block in encoder.append(rows, open_blocks.of(target)):
                delivery.put(target, block)
        for target, block in open_blocks.surplus():
            delivery.put(target, block)
        first_row += batch.num_rows
    for target, block in open_blocks.rest():
        delivery.put(target, block)


class OpenBlocks:
    """One open block for each partition that was written to; ``new_block`` makes an empty one."""

    def __init__(self, new_block: Callable[[], OpenBlock], clock: Clock = SYSTEM_CLOCK) -> None:
        self._new_block, self._clock = new_block, clock
        self._open: dict[TopicPartition, OpenBlock] = {}
        self._since_s = clock.monotonic()

    def of(self, target: TopicPartition) -> OpenBlock:
        """The open block of a partition."""
        block = self._open.get(target)
        if block is None:
            block = self._open[target] = self._new_block()
        return block

    def surplus(self) -> Iterator[tuple[TopicPartition, EncodedBlock]]:
        """Take the blocks that must not wait for more rows: all after ``OPEN_S_MAX``, else the largest ones until half
        of ``OPEN_BYTES_MAX`` is free again.
        """
        if self._clock.monotonic() - self._since_s >= OPEN_S_MAX:
            yield from self.rest()
            return
        buffered_bytes = sum(len(block.buffer) for block in self._open.values())
        if buffered_bytes > OPEN_BYTES_MAX:
            for target, block in sorted(self._open.items(), key=lambda item: -item[1].used):
                buffered_bytes -= len(block.buffer)
                del self._open[target]
                if block.count:
                    yield target, block.take()
                if buffered_bytes <= OPEN_BYTES_MAX // 2:
                    return

    def rest(self) -> Iterator[tuple[TopicPartition, EncodedBlock]]:
        """Take all blocks, in the order in which their partitions first occurred."""
        blocks, self._open = self._open, {}
        self._since_s = self._clock.monotonic()
        for target, block in blocks.items():
            if block.count:
                yield target, block.take()
