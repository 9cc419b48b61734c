"""The columns of a read of RocketMQ, and which of them decoders have to give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    TimestampType,
)

RECORD_COLUMNS: Final[Mapping[str, DataType]] = {
    "topic": StringType(),
    "broker_name": StringType(),
    "queue_id": IntegerType(),
    "queue_offset": LongType(),
    "message_id": StringType(),
    "offset_message_id": StringType(),
    "keys": StringType(),
    "tags": StringType(),
    "properties": MapType(StringType(), StringType()),
    "born_timestamp": TimestampType(),
    "store_timestamp": TimestampType(),
    "born_host": StringType(),
    "reconsume_times": IntegerType(),
    "flag": IntegerType(),
    "value": BinaryType(),
}
"""Every column of a read, in order, with its type unless options say otherwise; all nullable."""

CONSTANT_COLUMNS: Final = frozenset({"topic", "broker_name", "queue_id"})
"""Those that have one value in a whole queue."""

RAW_COLUMNS: Final = tuple(name for name in RECORD_COLUMNS if name not in CONSTANT_COLUMNS)
"""Those that decoders give, in the order in which the plain decoder has them."""
