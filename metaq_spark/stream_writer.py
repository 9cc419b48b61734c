"""The streaming sink: appends the rows of every micro-batch, at least once.

A micro-batch that Spark runs again, after a failure between its last acknowledgement and Spark's own commit, is written
again. Spark makes a new writer for every call on the driver, so a writer holds nothing but its plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from metaq_spark.options import SinkOptions
from metaq_spark.sink_plan import plan_write
from metaq_spark.sink_task import WrittenMessages, write_batches

_log = logging.getLogger(__name__)


class MetaQStreamWriter(DataSourceStreamArrowWriter):
    """Appends to topics; in complete mode (``overwrite``) the whole result of every batch, as Kafka's sink does."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        self._plan = plan_write(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenMessages:
        """Store the rows of one task."""
        return write_batches(iterator, self._plan)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: what a task reported is stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Messages cannot be taken back; say so."""
        _log.warning("batch %d failed; messages of the tasks that finished stay in their topics", batchId)
