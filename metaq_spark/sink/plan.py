"""What the driver settles before a write starts, so that mistakes are told before any message is sent."""

from __future__ import annotations

from pyspark.sql.types import StructType

from metaq_spark.backends.metaq.exactly_once.plan import plan_transaction
from metaq_spark.garbage_collection import freeze_modules
from metaq_spark.options.parsing import SinkOptions
from metaq_spark.sink.columns import find_sink_columns
from metaq_spark.sink.routes import shared_routes
from metaq_spark.sink.task import SinkPlan


def plan_write(options: SinkOptions, schema: StructType, streaming: bool) -> SinkPlan:
    """Check the columns, find the topic and, for exactly-once delivery, the brokers that take part.

    Raises:
        ColumnError: The DataFrame's columns are not what a write takes.
        TopicNotFound: No broker accepts the topic of the option.
        ExactlyOnceError: A broker cannot take part in exactly-once delivery.
        ConnectionFailed, DeadlineExceeded: A broker could not be asked.
    """
    freeze_modules()
    columns = find_sink_columns(schema, options.topic)
    route = None if options.topic is None else shared_routes().find(options, options.topic)
    transaction = plan_transaction(options, streaming) if options.exactly_once else None
    return SinkPlan(options, columns, route, transaction)
