"""At-least-once delivery of the blocks of a task: each is put, and acknowledged before the task ends."""

from __future__ import annotations

from contextlib import ExitStack

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.pool import SessionPool
from metaq.model import Address, TopicPartition, Xid
from metaq_spark.backends.metaq.options import SinkOptions
from metaq_spark.columns.blocks import Block


class AcknowledgedPuts:
    """Every block is stored when ``finish`` returns; some may be stored twice, and those of a failed task stay."""

    def __init__(self, options: SinkOptions, pool: SessionPool) -> None:
        self._options, self._pool = options, pool
        self._sessions = ExitStack()
        self._writers: dict[Address, BatchWriter] = {}

    def put(self, target: TopicPartition, address: Address, block: Block) -> None:
        """See ``Puts``."""
        writer = self._writers.get(address) or self._connect(address, target.topic)
        writer.write(target.partition.index, block.data, block.count, target.topic)

    def _connect(self, address: Address, topic: str) -> BatchWriter:
        options = self._options
        session = self._sessions.enter_context(self._pool.lease(address))
        pause_s = options.retry_interval_ms / 1000
        writer = BatchWriter(session, topic, retries=options.retries, retry_interval_s=pause_s)
        self._writers[address] = writer
        return self._writers[address]

    def finish(self) -> tuple[Xid, ...]:
        """See ``Puts``; there is nothing to commit."""
        for writer in self._writers.values():
            writer.flush()
        self._sessions.close()
        return ()

    def give_up(self, error: BaseException) -> None:
        """See ``Puts``."""
        self._sessions.__exit__(type(error), error, error.__traceback__)
