"""``format("metaq")``: implements ``metaq_spark.backend.Backend``. Heavy modules are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from metaq_spark.backends.metaq.options import (
    NOTATION,
    TABLE,
    parse_broker_options,
    parse_sink_options,
    parse_source_options,
    source_layout,
)
from metaq_spark.options.table import Use

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from metaq_spark.backends.metaq.cluster import Cluster
    from metaq_spark.backends.metaq.lag_lookup import LagLookup
    from metaq_spark.backends.metaq.probe import BrokerProbe
    from metaq_spark.backends.metaq.sink import MetaQSink
    from metaq_spark.backends.metaq.source import MetaQSource
    from metaq_spark.columns.row_layout import RowLayout


class MetaQBackend:
    name = "metaq"
    system = "MetaQ"
    notation = NOTATION

    def layout(self, raw: Mapping[str, str]) -> RowLayout:
        return source_layout(raw)

    def source(self, raw: Mapping[str, str], use: Use) -> MetaQSource:
        from metaq_spark.backends.metaq.source import MetaQSource

        return MetaQSource(parse_source_options(raw, use))

    def sink(self, raw: Mapping[str, str], use: Use, schema: StructType) -> MetaQSink:
        from metaq_spark.backends.metaq.sink import MetaQSink

        return MetaQSink(parse_sink_options(raw, use), schema, streaming=use is Use.STREAM_WRITE)

    def cluster(self, raw: Mapping[str, str]) -> Cluster:
        from metaq_spark.backends.metaq.cluster import Cluster

        return Cluster(parse_broker_options(raw))

    def lag_lookup(self, raw: Mapping[str, str]) -> LagLookup:
        from metaq_spark.backends.metaq.lag_lookup import LagLookup

        return LagLookup(parse_broker_options(raw))

    def probe(self, raw: Mapping[str, str]) -> BrokerProbe:
        from metaq_spark.backends.metaq.probe import BrokerProbe

        return BrokerProbe(parse_broker_options(TABLE.reach_of(raw)))


BACKEND: Final = MetaQBackend()
