"""What the driver settles before a write starts, so that mistakes are told before any message is sent."""

from __future__ import annotations

from pyspark.sql.types import StructType

from metaq_spark.options import SinkOptions
from metaq_spark.routes import shared_routes
from metaq_spark.sink_columns import find_sink_columns
from metaq_spark.sink_task import SinkPlan


def plan_write(options: SinkOptions, schema: StructType) -> SinkPlan:
    """Check the columns and find the topic.

    Raises:
        ColumnError: The DataFrame's columns are not what a write takes.
        TopicNotFound: No broker accepts the topic of the option.
        ConnectionFailed, DeadlineExceeded: A broker could not be asked.
    """
    columns = find_sink_columns(schema, options.topic)
    route = None if options.topic is None else shared_routes().find(options, options.topic)
    return SinkPlan(options, columns, route)
