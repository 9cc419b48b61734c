"""The batch read: one task for each partition that holds messages between the two positions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from metaq.client.clock import SYSTEM_CLOCK, Clock
from metaq.client.pool import SessionPool
from metaq.model import OffsetRange, TopicPartition
from metaq_spark.cluster import Cluster
from metaq_spark.data_loss import report_data_loss
from metaq_spark.options import SourceOptions
from metaq_spark.partition_reader import RangePartition, read_partition
from metaq_spark.planning import check_boundaries, ranges_between, resolve


class MetaQReader(DataSourceReader):
    """Reads ``[startingOffsets, endingOffsets)`` of every partition, as they stand when the query is planned."""

    def __init__(self, options: SourceOptions, pool: SessionPool | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options, self._pool, self._clock = options, pool, clock

    def partitions(self) -> list[InputPartition]:
        """One for each partition with something to read."""
        cluster = Cluster(self._options, self._pool, self._clock)
        cluster.require_stored(self._options.topics)
        ranges = self._ranges(cluster)
        return [RangePartition(where, cluster.address_of(where), offsets) for where, offsets in ranges.items()]

    def _ranges(self, cluster: Cluster) -> dict[TopicPartition, OffsetRange]:
        report_loss = partial(report_data_loss, fail=self._options.fail_on_data_loss)
        held = cluster.held(self._options.topics)
        start = resolve("startingOffsets", self._options.starting_offsets, held, report_loss)
        end = resolve("endingOffsets", self._options.ending_offsets, held, report_loss)
        check_boundaries("startingOffsets", self._options.starting_offsets, start, held, cluster)
        return ranges_between(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        if not isinstance(partition, RangePartition):  # Spark's stand-in where there is nothing to read
            return iter(())
        return read_partition(partition, self._options, self._pool)
