"""One task of a read: a byte range of one partition, fetched and turned into record batches.

Runs in Spark's Python workers. Sockets come from the pool of the worker's process, which lives through many tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from metaq.client.fetch import Run
from metaq.client.pool import SessionPool
from metaq.client.range_reader import read_range
from metaq.client.session import Session
from metaq.errors import DataMissing, OffsetMoved
from metaq.model import Address, OffsetRange, TopicPartition
from metaq_spark.cluster import pool_with
from metaq_spark.columns.decode import RunDecoder, measure_run
from metaq_spark.columns.memory import keep_freed_memory
from metaq_spark.data_loss import report_data_loss
from metaq_spark.options import SourceOptions


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """What a task needs to know: which bytes of which partition, and the broker that serves it."""

    source: TopicPartition
    address: Address
    offsets: OffsetRange


def read_partition(
    partition: RangePartition, options: SourceOptions, pool: SessionPool | None = None
) -> Iterator[pa.RecordBatch]:
    """The messages whose first byte is in the range, in order, as batches of ``schema.ARROW_SCHEMA``.

    Raises:
        DataLoss: Bytes of the range are gone and the option ``failOnDataLoss`` is true.
        CorruptFrame: A message does not match its checksum, or is none.
        MetaqError: The broker could not be asked, even after retries, or refused.
    """
    keep_freed_memory()
    decoder = RunDecoder(partition.source)
    with (pool or pool_with(options.timeouts, options.tls)).lease(partition.address) as session:
        for run in _runs(session, partition, options):
            yield from decoder.decode(run.data, run.offset)
    yield from decoder.flush()


def _runs(session: Session, partition: RangePartition, options: SourceOptions) -> Iterator[Run]:
    """The runs of the range; over gaps, if data loss is accepted."""
    report_loss = partial(report_data_loss, fail=options.fail_on_data_loss)
    at, end = partition.offsets.start, partition.offsets.end
    while at < end:
        try:
            for run in _read(session, partition.source, OffsetRange(at, end), options):
                at = run.end
                yield run
            return
        except OffsetMoved as moved:
            report_loss(f"{partition.source}: {moved}")
            if moved.to <= at:
                return
            at = moved.to
        except DataMissing as missing:
            report_loss(f"{partition.source}: {missing}")
            return


def _read(session: Session, source: TopicPartition, offsets: OffsetRange, options: SourceOptions) -> Iterator[Run]:
    return read_range(
        session,
        source.topic,
        source.partition.index,
        offsets,
        options.fetch_bytes,
        retries=options.retries,
        retry_interval_s=options.retry_interval_ms / 1000,
        measure=measure_run,
    )
