"""The batch read: the range of each partition between two positions, cut into tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from metaq_spark.garbage_collection import freeze_modules
from metaq_spark.offsets import Progress, Ranges, incarnations_of
from metaq_spark.plain_errors import plain_errors, plain_errors_of_rows
from metaq_spark.source.backend import Source
from metaq_spark.source.planning import ranges_between
from metaq_spark.source.resolution import ending_offsets, require_named, starting_offsets
from metaq_spark.source.tasks import read_task, tasks
from metaq_spark.worker_package import ShippedToWorkers


class BatchReader(ShippedToWorkers, DataSourceReader):
    """Reads from start to end of every partition, at the time of planning."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Return the tasks; empty if there is nothing to read."""
        freeze_modules()
        source = self._source
        source.check(streaming=False)
        require_named(source)
        available = source.cluster.available(source.options.selection)
        spans = {where: one.offsets for where, one in available.items()}
        start = Progress(starting_offsets(source, spans))
        ranges = ranges_between(start, Progress(ending_offsets(source, spans)))
        source.report_unlisted(available, streaming=False)
        return tasks(self._narrow(ranges), incarnations_of(available), source)

    def _narrow(self, ranges: Ranges) -> Ranges:
        """Return the ranges to read; overridden by readers that skip parts."""
        return ranges

    @plain_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._source)
