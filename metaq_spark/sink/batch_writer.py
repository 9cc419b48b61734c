"""The batch write: appends every row as a message."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from metaq_spark.backends.metaq.sessions import RetryingSessions
from metaq_spark.errors import OptionError
from metaq_spark.garbage_collection import freeze_modules
from metaq_spark.options.parsing import SinkOptions
from metaq_spark.plain_errors import plain_errors
from metaq_spark.sink.commit import abort_write, commit_write
from metaq_spark.sink.plan import plan_write
from metaq_spark.sink.task import WrittenMessages, write_batches

_log = logging.getLogger(__name__)


class MetaQWriter(DataSourceArrowWriter):
    """Appends to topics. Options, columns and topic are checked when it is made, on the driver, once for each write."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("mode", 'overwrite: a topic can only be appended to; use .mode("append")')
        self._plan = plan_write(options, schema, streaming=False)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenMessages:
        """Store the rows of one task."""
        return write_batches(iterator, self._plan)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """At least once: nothing is left to do. Exactly once: decide the write and make it readable."""
        freeze_modules()
        if self._plan.transaction is not None:
            commit_write(self._plan.transaction, messages, RetryingSessions(self._plan.options))

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """At least once: messages cannot be taken back; say so. Exactly once: take back what was not decided."""
        if self._plan.transaction is None:
            _log.warning("the write failed; messages of the tasks that finished stay in their topics")
        else:
            abort_write(self._plan.transaction, RetryingSessions(self._plan.options))
