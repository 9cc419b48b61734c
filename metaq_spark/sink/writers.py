"""The interface to Spark: the batch write, and the streaming sink.

At least once: a micro-batch that Spark runs again, after a failure between its last acknowledgement and Spark's own
commit, is written again. Exactly once: a micro-batch is readable when the driver has decided it, and never twice. Spark
creates a new writer for every call on the driver, so a writer has only its ``Sink``, which checks options, columns and
topic on the driver, once for each write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from metaq.errors import MetaqError
from metaq_spark.errors import WriteFailed
from metaq_spark.garbage_collection import freeze_modules
from metaq_spark.plain_errors import plain_errors
from metaq_spark.sink.backend import Sink
from metaq_spark.sink.task import write_batches
from metaq_spark.spark_version import DataSourceStreamArrowWriter
from metaq_spark.worker_package import ShippedToWorkers

_log = logging.getLogger(__name__)


class _Writer(ShippedToWorkers):
    """Base of both: writing in a task, and committing on the driver."""

    def __init__(self, sink: Sink) -> None:
        freeze_modules()
        self._sink = sink

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with self._advising():
            return write_batches(iterator, self._sink)

    def _commit(self, messages: list[WriterCommitMessage | None], batch_id: int | None) -> None:
        freeze_modules()
        if self._sink.transaction is not None:
            with self._advising():
                self._sink.transaction.commit(messages, batch_id)

    @contextmanager
    def _advising(self) -> Iterator[None]:
        """Add advice to the error if a broker could not be reached."""
        try:
            yield
        except MetaqError as error:
            cause = error.__cause__ if isinstance(error.__cause__, MetaqError) else error
            if not (error.away or cause.away):
                raise
            raise WriteFailed(str(error), self._sink.reach.advice_after(cause, "")) from error


class SinkBatchWriter(_Writer, DataSourceArrowWriter):
    """Appends every row to a topic, as a message."""

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """At least once: do nothing. Exactly once: decide the write and make it readable."""
        self._commit(messages, None)

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """At least once: log that messages stay written. Exactly once: undo the write unless it was decided."""
        if self._sink.transaction is None:
            _log.warning("the write failed; messages of the tasks that finished stay in their topics")
        else:
            self._sink.transaction.abort()


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Appends to topics; in complete mode the whole result of every batch, as Kafka's sink does."""

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """At least once: do nothing. Exactly once: decide the batch and make it readable."""
        self._commit(messages, batchId)

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log what happens to the messages. Nothing is undone: Spark also calls this after a failed commit, and a
        decision is final.
        """
        if self._sink.transaction is None:
            _log.warning("batch %d failed; messages of the tasks that finished stay in their topics", batchId)
        else:
            _log.warning("batch %d failed; it is completed, or written again, when the query is restarted", batchId)
