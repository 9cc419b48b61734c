"""The data source of a format: checks the options and creates readers and writers on the format's backend.

Spark pickles this object between its processes and imports the package in each of them, so heavy modules are imported
on first use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, ClassVar, Final, ParamSpec, TypeVar

try:
    from pyspark.sql.datasource import DataSource
except ModuleNotFoundError as error:
    if error.name != "pyspark.sql.datasource":
        raise
    from pyspark import __version__

    raise ImportError(f"MetaQ for Spark needs Spark 4.0 or newer; this is Spark {__version__}") from None
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from metaq_spark.backend import Backend
    from metaq_spark.sink.writers import SinkBatchWriter, StreamWriter
    from metaq_spark.source.batch_reader import BatchReader
    from metaq_spark.source.stream_reader import RefusedStream, StreamReader


P = ParamSpec("P")
R = TypeVar("R")


TABLE_MARK: Final = "provider"
"""An option that is only present for a table in Spark's catalog."""


def _plain_errors(method: Callable[P, R]) -> Callable[P, R]:
    """``plain_errors``, imported when it is needed."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from metaq_spark.plain_errors import plain_errors

        return plain_errors(method)(*args, **kwargs)

    return call


class QueueDataSource(DataSource):
    """Reads and writes topics of the format ``format_name``, in batches and as a stream."""

    format_name: ClassVar[str]

    @_plain_errors
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._raw = dict(options)
        if TABLE_MARK in {key.lower() for key in options}:
            raise self._tables_unsupported()

    @classmethod
    def name(cls) -> str:
        return cls.format_name

    @property
    def _backend(self) -> Backend:
        from metaq_spark.backend import backend_named

        return backend_named(self.format_name)

    def _tables_unsupported(self) -> Exception:
        from metaq_spark.errors import TablesUnsupported

        return TablesUnsupported(self.format_name)

    @_plain_errors
    def schema(self) -> str:
        """The columns of a read, as Spark SQL. Wrong options are refused here, when the read is declared."""
        return self._backend.layout(self._raw).ddl

    @_plain_errors
    def reader(self, schema: StructType) -> BatchReader:
        from metaq_spark.options.table import Use
        from metaq_spark.source.batch_reader import BatchReader
        from metaq_spark.spark_version import PUSHED_FILTERS, say_once, spark_version

        if not self._raw:  # a read without options gets the schema that it declared itself
            raise self._tables_unsupported()
        source = self._backend.source(self._raw, Use.BATCH_READ)
        source.options.row_layout.check(schema)
        if source.options.push_filters and not PUSHED_FILTERS.present:
            say_once(f"option pushFilters: Spark {spark_version()} passes no filters to a source, so all is fetched")
        elif source.options.push_filters:
            from metaq_spark.source.pushdown import PushdownReader

            return PushdownReader(source)
        return BatchReader(source)

    def streamReader(self, schema: StructType) -> StreamReader | RefusedStream:
        """Return the streaming source, or one that raises the error of the options or the schema when it is used."""
        from metaq_spark.errors import ConnectorError
        from metaq_spark.options.table import Use
        from metaq_spark.source.stream_reader import RefusedStream, StreamReader
        from metaq_spark.spark_version import ADMISSION_CONTROL

        try:
            source = self._backend.source(self._raw, Use.STREAM_READ)
            source.options.row_layout.check(schema)
        except ConnectorError as error:
            return RefusedStream(error)
        if ADMISSION_CONTROL.present:
            return StreamReader(source)
        from metaq_spark.source.limiting_reader import LimitingReader, given_limits

        return LimitingReader(source, given_limits(self._raw))

    @_plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> SinkBatchWriter:
        from metaq_spark.errors import OptionError
        from metaq_spark.options.table import Use
        from metaq_spark.sink.writers import SinkBatchWriter

        if overwrite:
            raise OptionError("mode", 'overwrite: a topic can only be appended to; use .mode("append")')
        return SinkBatchWriter(self._backend.sink(self._raw, Use.BATCH_WRITE, schema))

    @_plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from metaq_spark.options.table import Use
        from metaq_spark.sink.writers import StreamWriter
        from metaq_spark.spark_version import ARROW_STREAM_WRITER

        sink = self._backend.sink(self._raw, Use.STREAM_WRITE, schema)
        if ARROW_STREAM_WRITER.present:
            return StreamWriter(sink)
        from metaq_spark.sink.row_writer import RowStreamWriter

        return RowStreamWriter(sink, schema)


class MetaQDataSource(QueueDataSource):
    """Reads topics of MetaQ brokers and writes to them, in batches and as a stream.

    Options, columns and guarantees are described in ``docs/connector.md``.

    Examples:
        >>> spark.readStream.format("metaq").option("brokers", "127.0.0.1:8123").option("subscribe", "orders").load()
        >>> df.write.format("metaq").mode("append").option("brokers", "127.0.0.1:8123").option("topic", "orders").save()
    """

    format_name = "metaq"


class RocketMQDataSource(QueueDataSource):
    """Reads topics of RocketMQ brokers and writes to them, in batches and as a stream.

    Options, columns and guarantees are described in ``docs/rocketmq.md``.

    Examples:
        >>> spark.readStream.format("rocketmq").option("nameServers", "ns1:9876").option("subscribe", "orders").load()
        >>> df.write.format("rocketmq").mode("append").option("nameServers", "ns1:9876").option("topic", "t").save()
    """

    format_name = "rocketmq"
