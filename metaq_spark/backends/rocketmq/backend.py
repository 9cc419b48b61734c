"""``format("rocketmq")``: implements ``metaq_spark.backend.Backend``. Heavy modules are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from metaq_spark.backends.rocketmq.options import (
    NOTATION,
    TABLE,
    parse_server_options,
    parse_sink_options,
    parse_source_options,
    source_layout,
)
from metaq_spark.options.table import Use

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from metaq_spark.backends.rocketmq.cluster import Cluster
    from metaq_spark.backends.rocketmq.lag_lookup import LagLookup
    from metaq_spark.backends.rocketmq.probe import QueueProbe
    from metaq_spark.backends.rocketmq.sink import RocketMQSink
    from metaq_spark.backends.rocketmq.source import RocketMQSource
    from metaq_spark.columns.row_layout import RowLayout


class RocketMQBackend:
    name = "rocketmq"
    system = "RocketMQ"
    notation = NOTATION

    def layout(self, raw: Mapping[str, str]) -> RowLayout:
        return source_layout(raw)

    def source(self, raw: Mapping[str, str], use: Use) -> RocketMQSource:
        from metaq_spark.backends.rocketmq.source import RocketMQSource

        return RocketMQSource(parse_source_options(raw, use))

    def sink(self, raw: Mapping[str, str], use: Use, schema: StructType) -> RocketMQSink:
        from metaq_spark.backends.rocketmq.sink import RocketMQSink

        return RocketMQSink(parse_sink_options(raw, use), schema, streaming=use is Use.STREAM_WRITE)

    def cluster(self, raw: Mapping[str, str]) -> Cluster:
        from metaq_spark.backends.rocketmq.cluster import Cluster

        return Cluster(parse_server_options(raw))

    def lag_lookup(self, raw: Mapping[str, str]) -> LagLookup:
        from metaq_spark.backends.rocketmq.lag_lookup import LagLookup

        return LagLookup(parse_server_options(raw))

    def probe(self, raw: Mapping[str, str]) -> QueueProbe:
        from metaq_spark.backends.rocketmq.probe import QueueProbe

        return QueueProbe(parse_server_options(TABLE.reach_of(raw)))


BACKEND: Final = RocketMQBackend()
