"""The batch read: what the partitions hold between two positions, cut into tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_spark.backends.metaq.cluster import Cluster, SessionPool
from metaq_spark.garbage_collection import freeze_modules
from metaq_spark.offsets import Progress, Ranges, incarnations_of
from metaq_spark.options.parsing import SourceOptions
from metaq_spark.plain_errors import plain_errors, plain_errors_of_rows
from metaq_spark.source.group_offsets import GroupOffsets, required_groups
from metaq_spark.source.planning import ranges_between
from metaq_spark.source.range_groups import read_task
from metaq_spark.source.read_plan import ending_offsets, starting_offsets, tasks
from metaq_spark.source.unopened import report_unopened


class MetaQReader(DataSourceReader):
    """Reads from the start to the end of every partition, as they stand when the query is planned."""

    def __init__(
        self,
        options: SourceOptions,
        pool: SessionPool | None = None,
        clock: Clock = SYSTEM_CLOCK,
        groups: GroupOffsets | None = None,
    ) -> None:
        self._options, self._pool, self._clock = options, pool, clock
        self._groups = required_groups(options, groups)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """The tasks; none where there is nothing to read."""
        freeze_modules()
        options, cluster = self._options, Cluster(self._options, self._pool, self._clock)
        if not options.wait_for_topic:
            cluster.require(options.selection, stored=True)
        if options.dead_letter_topic is not None:
            cluster.writable(options.dead_letter_topic)  # an unknown one shall not be met at the first damage
        available = cluster.available(options.selection)
        spans = {where: one.offsets for where, one in available.items()}
        start = starting_offsets(options, spans, cluster, self._groups)
        ranges = ranges_between(Progress(start), Progress(ending_offsets(options, spans, cluster)))
        report_unopened(options, available, cluster, streaming=False)
        return [*tasks(self._narrow(ranges, cluster), incarnations_of(available), options, cluster)]

    def _narrow(self, ranges: Ranges, cluster: Cluster) -> Ranges:
        """The ranges to read, for readers that know that parts of them are not wanted."""
        return ranges

    @plain_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_task(partition, self._options, self._pool)
