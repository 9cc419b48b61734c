"""``format("metaq")``: the door through which Spark comes in. Parses the options and hands over to readers and writers.

Spark pickles this object between its processes and imports the package in each of them, so everything heavy is imported
where it is needed.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from metaq_spark.batch_reader import MetaQReader
    from metaq_spark.batch_writer import MetaQWriter
    from metaq_spark.stream_reader import MetaQStreamReader
    from metaq_spark.stream_writer import MetaQStreamWriter


class MetaQDataSource(DataSource):
    """Reads topics of MetaQ brokers and writes to them, in batches and as a stream.

    Options, columns and guarantees are described in ``docs/connector.md``.

    Examples:
        >>> spark.readStream.format("metaq").option("brokers", "127.0.0.1:8123").option("subscribe", "orders").load()
        >>> df.write.format("metaq").mode("append").option("brokers", "127.0.0.1:8123").option("topic", "orders").save()
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._raw = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "metaq"

    def schema(self) -> str:
        """The columns of a read, as Spark SQL. Wrong options are told here, when the read is declared."""
        from metaq_spark.columns.schema import READ_DDL
        from metaq_spark.options import check_source_options

        check_source_options(self._raw)
        return READ_DDL

    def reader(self, schema: StructType) -> MetaQReader:
        """The batch read."""
        from metaq_spark.batch_reader import MetaQReader
        from metaq_spark.options import Use, parse_source_options
        from metaq_spark.read_schema import check_read_schema

        check_read_schema(schema)
        return MetaQReader(parse_source_options(self._raw, Use.BATCH_READ))

    def streamReader(self, schema: StructType) -> MetaQStreamReader:
        """The streaming source."""
        from metaq_spark.options import Use, parse_source_options
        from metaq_spark.read_schema import check_read_schema
        from metaq_spark.stream_reader import MetaQStreamReader

        check_read_schema(schema)
        return MetaQStreamReader(parse_source_options(self._raw, Use.STREAM_READ))

    def writer(self, schema: StructType, overwrite: bool) -> MetaQWriter:
        """The batch write."""
        from metaq_spark.batch_writer import MetaQWriter
        from metaq_spark.options import parse_sink_options

        return MetaQWriter(parse_sink_options(self._raw), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MetaQStreamWriter:
        """The streaming sink."""
        from metaq_spark.options import parse_sink_options
        from metaq_spark.stream_writer import MetaQStreamWriter

        return MetaQStreamWriter(parse_sink_options(self._raw), schema, overwrite)
