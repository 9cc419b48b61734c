"""The batch write: appends every row as a message."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from metaq_spark.errors import OptionError
from metaq_spark.options import SinkOptions
from metaq_spark.sink_plan import plan_write
from metaq_spark.sink_task import WrittenMessages, write_batches

_log = logging.getLogger(__name__)


class MetaQWriter(DataSourceArrowWriter):
    """Appends to topics, at least once. Options, columns and topic are checked when it is made, on the driver."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("mode", 'overwrite: a topic can only be appended to; use .mode("append")')
        self._plan = plan_write(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenMessages:
        """Store the rows of one task."""
        return write_batches(iterator, self._plan)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: what a task reported is stored."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Messages cannot be taken back; say so."""
        _log.warning("the write failed; messages of the tasks that finished stay in their topics")
