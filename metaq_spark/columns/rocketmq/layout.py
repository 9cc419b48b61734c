"""The columns of a read of RocketMQ: a row has its type, its documentation, and how a record has it.

The compiled loops (``record_kernels``) fill buffers named after a column: ``BORN_HOST_AT`` and so on. Tests compare
what they give with what ``read`` gives, for every column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    TimestampType,
)

from metaq_spark.columns.rocketmq.record import RecordParts, host_text
from metaq_spark.columns.row_layout import HEADERS, Column

Pairs = Mapping[str, str]
Read = Callable[[RecordParts, Pairs, bytes], Any]
"""The value of a column, from a record, its properties and its decompressed body."""

_TIME_MS_MAX: Final = 253402300799999


@dataclass(frozen=True, slots=True)
class RecordColumn(Column):
    """``read``: ``None`` where all messages of a queue have the same value. ``is_parsed``: it is of the properties."""

    read: Read | None = None
    is_parsed: bool = False


def _row(name: str, kind: DataType, read: Read | None, doc: str) -> RecordColumn:
    return RecordColumn(name, kind, doc, read)


def _property(name: str, of: str, doc: str) -> RecordColumn:
    return RecordColumn(name, StringType(), doc, lambda record, pairs, body: pairs.get(of), is_parsed=True)


def _time_us(time_ms: int) -> int | None:
    return time_ms * 1000 if 0 <= time_ms <= _TIME_MS_MAX else None


def _offset_message_id(record: RecordParts, _pairs: Pairs, _body: bytes) -> str:
    return (record.store_host + record.physical_offset.to_bytes(8, signed=True)).hex().upper()


COLUMNS: Final = (
    _row("topic", StringType(), None, "The topic, without the namespace."),
    _row(
        "broker_name", StringType(), None,
        "The broker that has the queue. With the queue id this is the queue's identity.",
    ),
    _row("queue_id", IntegerType(), None, "The queue's number at that broker."),
    _row("queue_offset", LongType(), lambda record, pairs, body: record.offset,
         "The number of the message in its queue."),
    _property(
        "message_id", "UNIQ_KEY",
        "UNIQ_KEY, which producers give: what Java clients call the message id. Null if the message has none.",
    ),
    _row(
        "offset_message_id", StringType(), _offset_message_id,
        "The id by which a broker finds the message: its address and its place in the broker's log.",
    ),
    _property(
        "keys", "KEYS",
        "KEYS: the keys to look the message up by, separated by spaces. Null if there are none.",
    ),
    _property("tags", "TAGS", "TAGS: the message's tag. Null if there is none."),
    RecordColumn(
        "properties", MapType(StringType(), StringType()),
        "All properties as they are stored, those that servers add among them.",
        lambda record, pairs, body: list(pairs.items()), is_parsed=True,
    ),
    _row("born_timestamp", TimestampType(), lambda record, pairs, body: _time_us(record.born_ms),
         "When the producer made the message, by its clock."),
    _row("store_timestamp", TimestampType(), lambda record, pairs, body: _time_us(record.stored_ms),
         "When the broker stored it, by its clock."),
    _row("born_host", StringType(), lambda record, pairs, body: host_text(record.born_host),
         "The producer, `address:port`."),
    _row("reconsume_times", IntegerType(), lambda record, pairs, body: record.reconsume_times,
         "How often a consumer gave it back."),
    _row("flag", IntegerType(), lambda record, pairs, body: record.flag, "The producer's own number."),
    _row("value", BinaryType(), lambda record, pairs, body: body,
         "The body, decompressed. With `valueFormat`, a string or a struct."),
)  # fmt: skip
"""Every column of a read, in order, with its type unless options say otherwise; all nullable."""

MORE_COLUMNS: Final = (
    Column("key", BinaryType(), "`keys` as Kafka's source has the key. Only if `columns` names it."),
    Column(
        "headers", HEADERS,
        "The producer's own properties as Kafka's source has headers; null if there are none. Only if `columns` names "
        "it.",
    ),
)  # fmt: skip
"""Columns of a read that are left out unless the option ``columns`` names them."""

MORE_TYPES: Final[Mapping[str, DataType]] = {column.name: column.type for column in MORE_COLUMNS}

RECORD_COLUMNS: Final[Mapping[str, DataType]] = {column.name: column.type for column in COLUMNS}
READERS: Final[Mapping[str, Read]] = {column.name: column.read for column in COLUMNS if column.read is not None}

RAW_COLUMNS: Final = tuple(READERS)
"""The columns that decoders return, in the plain decoder's order."""

FROM_PROPERTIES: Final = frozenset(column.name for column in COLUMNS if column.is_parsed)
