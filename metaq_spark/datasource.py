"""``format("metaq")``: the door through which Spark comes in. Parses the options and hands over to readers and writers.

Spark pickles this object between its processes and imports the package in each of them, so everything heavy is imported
where it is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from metaq_spark.sink.batch_writer import MetaQWriter
    from metaq_spark.sink.stream_writer import MetaQStreamWriter
    from metaq_spark.source.batch_reader import MetaQReader
    from metaq_spark.source.refused_stream import RefusedStream
    from metaq_spark.source.stream_reader import MetaQStreamReader


P = ParamSpec("P")
R = TypeVar("R")


TABLE_MARK: Final = "provider"
"""Among the options only where they are those of a table in Spark's catalog."""


def _plain_errors(method: Callable[P, R]) -> Callable[P, R]:
    """``plain_errors``, imported when it is needed."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from metaq_spark.plain_errors import plain_errors

        return plain_errors(method)(*args, **kwargs)

    return call


class MetaQDataSource(DataSource):
    """Reads topics of MetaQ brokers and writes to them, in batches and as a stream.

    Options, columns and guarantees are described in ``docs/connector.md``.

    Examples:
        >>> spark.readStream.format("metaq").option("brokers", "127.0.0.1:8123").option("subscribe", "orders").load()
        >>> df.write.format("metaq").mode("append").option("brokers", "127.0.0.1:8123").option("topic", "orders").save()
    """

    @_plain_errors
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._raw = dict(options)
        if TABLE_MARK in {key.lower() for key in options}:
            from metaq_spark.errors import TablesUnsupported

            raise TablesUnsupported

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "metaq"

    @_plain_errors
    def schema(self) -> str:
        """The columns of a read, as Spark SQL. Wrong options are told here, when the read is declared."""
        from metaq_spark.options.parsing import check_source_options

        return check_source_options(self._raw).ddl

    @_plain_errors
    def reader(self, schema: StructType) -> MetaQReader:
        """The batch read."""
        from metaq_spark.errors import TablesUnsupported
        from metaq_spark.options.parsing import parse_source_options
        from metaq_spark.options.table import Use
        from metaq_spark.source.batch_reader import MetaQReader
        from metaq_spark.source.pushdown import PushdownReader
        from metaq_spark.source.read_schema import check_read_schema

        if not self._raw:  # a read that is declared by itself has met ``schema`` before
            raise TablesUnsupported
        options = parse_source_options(self._raw, Use.BATCH_READ)
        check_read_schema(schema, options.row_layout)
        return PushdownReader(options) if options.push_filters else MetaQReader(options)

    def streamReader(self, schema: StructType) -> MetaQStreamReader | RefusedStream:
        """The streaming source, or one that says what is wrong with the options or the schema when it is asked."""
        from metaq_spark.errors import ConnectorError
        from metaq_spark.options.parsing import parse_source_options
        from metaq_spark.options.table import Use
        from metaq_spark.source.read_schema import check_read_schema
        from metaq_spark.source.refused_stream import RefusedStream
        from metaq_spark.source.stream_reader import MetaQStreamReader

        try:
            options = parse_source_options(self._raw, Use.STREAM_READ)
            check_read_schema(schema, options.row_layout)
        except ConnectorError as error:
            return RefusedStream(error)
        return MetaQStreamReader(options)

    @_plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> MetaQWriter:
        """The batch write."""
        from metaq_spark.options.parsing import parse_sink_options
        from metaq_spark.options.table import Use
        from metaq_spark.sink.batch_writer import MetaQWriter

        return MetaQWriter(parse_sink_options(self._raw, Use.BATCH_WRITE), schema, overwrite)

    @_plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> MetaQStreamWriter:
        """The streaming sink."""
        from metaq_spark.options.parsing import parse_sink_options
        from metaq_spark.options.table import Use
        from metaq_spark.sink.stream_writer import MetaQStreamWriter

        return MetaQStreamWriter(parse_sink_options(self._raw, Use.STREAM_WRITE), schema, overwrite)
