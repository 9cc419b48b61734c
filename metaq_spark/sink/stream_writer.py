"""The streaming sink: appends the rows of every micro-batch.

At least once: a micro-batch that Spark runs again, after a failure between its last acknowledgement and Spark's own
commit, is written again. Exactly once: a micro-batch is readable when the driver has decided it, and never twice. Spark
makes a new writer for every call on the driver, so a writer holds nothing but its plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from metaq_spark.backends.metaq.sessions import RetryingSessions
from metaq_spark.garbage_collection import freeze_modules
from metaq_spark.options.parsing import SinkOptions
from metaq_spark.plain_errors import plain_errors
from metaq_spark.sink.commit import commit_stream
from metaq_spark.sink.plan import plan_write
from metaq_spark.sink.task import WrittenMessages, write_batches

_log = logging.getLogger(__name__)


class MetaQStreamWriter(DataSourceStreamArrowWriter):
    """Appends to topics; in complete mode (``overwrite``) the whole result of every batch, as Kafka's sink does."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        self._plan = plan_write(options, schema, streaming=True)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenMessages:
        """Store the rows of one task."""
        return write_batches(iterator, self._plan)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """At least once: nothing is left to do. Exactly once: decide the batch and make it readable."""
        freeze_modules()
        if self._plan.transaction is not None:
            commit_stream(self._plan.transaction, messages, batchId, RetryingSessions(self._plan.options))

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Say what becomes of the messages. Nothing is taken back: Spark also calls this after a commit that failed,
        and what was decided stays decided."""
        if self._plan.transaction is None:
            _log.warning("batch %d failed; messages of the tasks that finished stay in their topics", batchId)
        else:
            _log.warning("batch %d failed; it is finished, or written anew, when the query is started again", batchId)
