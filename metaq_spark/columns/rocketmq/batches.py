"""From decoded records to what Spark gets: the columns asked for, in their order and types, of the messages wanted.

Decoders give the columns of ``RAW_COLUMNS`` that are ``needed``. Here the columns of the whole queue are added,
messages with other tags are taken out (a broker compares hashes of tags, which may coincide), and the body gets the
form that the options ask for.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import DataType

from metaq.model import TopicPartition
from metaq_spark.columns.batches import RecordBatches, value_converters
from metaq_spark.columns.rocketmq.layout import RAW_COLUMNS, RECORD_COLUMNS
from metaq_spark.columns.schema import arrow_type

RAW_TYPES: Final = {name: arrow_type(RECORD_COLUMNS[name]) for name in RAW_COLUMNS}
"""The types that decoders give."""


class RecordBatchMaker(RecordBatches):
    """Makes the record batches of one queue.

    ``schema`` has the columns asked for; ``value_type`` is the type of the column ``value``, if it is among them.
    ``tags`` are those of the messages wanted, ``None`` = all messages; one without a tag is never among them.
    """

    def __init__(
        self, source: TopicPartition, schema: pa.Schema, value_type: DataType | None, tags: frozenset[str] | None = None
    ) -> None:
        self.source = source
        constants = {
            "topic": (source.topic, pa.string()),
            "broker_name": (str(source.partition[0]), pa.string()),
            "queue_id": (source.partition[1], pa.int32()),
        }
        wanted = None if tags is None else sorted(tags)
        super().__init__(schema, RAW_COLUMNS, constants, value_converters(value_type), "tags", wanted)
