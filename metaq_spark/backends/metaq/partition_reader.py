"""One range of a read: a session to its broker, on which ``RangeTask`` makes record batches, and errors with advice.

Runs in Spark's Python workers. Sockets come from the pool of the worker's process, which runs many tasks.
Bytes are streamed: only the requests in flight, one run, and one batch are in memory.

::

    range ──▶ incarnation still the same? ──▶ runs (get) or typed frames (fget) ──▶ decoder ──▶ batches
                        │                          │ moved, missing      │ damaged
                        ▼                          ▼                     ▼
                   data loss                data loss, or damage    onCorrupt: fail, skip, deadletter
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from metaq.errors import BrokerError, MetaqError, ProtocolError
from metaq.model import Address, OffsetRange, TopicPartition
from metaq_spark.backends.metaq.cluster import RetryingSessions, SessionPool, pool_with
from metaq_spark.backends.metaq.options import SourceOptions
from metaq_spark.errors import ReadFailed


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The input of a task: bytes of a partition, the broker that serves it, and its incarnation.

    ``incarnation`` is ``None`` if the broker does not report one.
    """

    source: TopicPartition
    address: Address
    offsets: OffsetRange
    incarnation: str | None = None


def read_partition(
    partition: RangePartition, options: SourceOptions, pool: SessionPool | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages whose first byte is in the range, in order, as batches of the selected columns.

    Raises:
        DataLoss: Bytes of the range are deleted and the option ``failOnDataLoss`` is true.
        CorruptFrame: A message does not match its checksum, or is not a frame, and the option ``onCorrupt`` is
            ``fail``.
        ReadFailed: The broker could not be asked, even after retries, or refused.
    """
    from metaq_spark.backends.metaq.range_task import RangeTask, damage_handler

    pool = pool or pool_with(options.reach)
    task: RangeTask | None = None
    try:
        sessions = RetryingSessions(options, pool, pool.clock)
        with sessions.lease(partition.address, partition.source.partition.broker_id) as session:
            handler = damage_handler(options, pool)
            task = RangeTask(session, partition.source, partition.offsets, partition.incarnation, options, handler)
            yield from task.batches()
    except MetaqError as error:
        if not (error.away or isinstance(error, ProtocolError | BrokerError)):
            raise
        at = partition.offsets.start if task is None else task.position
        raise read_failed(partition, at, error, options) from error


def read_failed(partition: RangePartition, at: int, error: MetaqError, options: SourceOptions) -> ReadFailed:
    """Return the error for a read that ends at offset ``at``, because of ``error``."""
    advice = "Check that the address is a MetaQ broker's, and what the broker's log says"
    if not isinstance(error, ProtocolError):
        said = "The broker's log says more; a closed partition is opened again by its operator"
        advice = options.advice_after(error, said)
    return ReadFailed(str(partition.source), at, str(error), advice)
