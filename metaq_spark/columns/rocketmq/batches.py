"""Converts decoded records into Spark's batches: the selected columns, in order and types, of the wanted messages.

Decoders return the ``needed`` columns of ``RAW_COLUMNS``. Here the queue's constant columns are added, messages with
other tags are dropped (a broker compares hashes of tags, which may collide), and the body is converted as the options
say. Messages that were written twice can be dropped: their UNIQ_KEY occurred shortly before in the same queue.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import pyarrow as pa
from pyspark.sql.types import DataType

from metaq.formats.rocketmq.tags import ALL_TAGS, TagFilter
from metaq.model import TopicPartition
from metaq_spark.columns.batches import NOTHING_DERIVED, Derived, RecordBatches, checked_values, value_converters
from metaq_spark.columns.json_rules import DEFAULT_RULES, JsonRules
from metaq_spark.columns.rocketmq.layout import RAW_COLUMNS, RECORD_COLUMNS
from metaq_spark.spark_version import arrow_type

RAW_TYPES: Final = {name: arrow_type(RECORD_COLUMNS[name]) for name in RAW_COLUMNS}
"""The types of decoded columns."""

_KEY: Final = "message_id"
_OFFSET: Final = "queue_offset"

_TYPES: Final = {_KEY: pa.string(), _OFFSET: pa.int64()}


class RecordBatchMaker(RecordBatches):
    """Creates the record batches of one queue.

    ``schema`` has the selected columns; ``value_type`` is the type of the column ``value``, if selected, and ``json``
    says what is malformed. ``tags``: which messages are wanted; unless all are, none without a tag.
    """

    def __init__(
        self,
        source: TopicPartition,
        schema: pa.Schema,
        value_type: DataType | None,
        tags: TagFilter = ALL_TAGS,
        json: JsonRules = DEFAULT_RULES,
    ) -> None:
        self.source = source
        constants = {
            "topic": (source.topic, pa.string()),
            "broker_name": (str(source.partition[0]), pa.string()),
            "queue_id": (source.partition[1], pa.int32()),
        }
        values = checked_values(value_type, json, source, _OFFSET)
        converters = {} if values is not None else value_converters(value_type, json)
        wanted = None if tags.is_all else tags.matches
        super().__init__(schema, RAW_COLUMNS, constants, converters, "tags", wanted, values, _derived(schema))


def _derived(schema: pa.Schema) -> Derived:
    if not {"key", "headers"} & set(schema.names):
        return NOTHING_DERIVED
    from metaq_spark.columns.headers import headers_of_properties, keys_as_bytes

    return {"key": ("keys", keys_as_bytes), "headers": ("properties", headers_of_properties)}


class RepeatedMessages:
    """Drops messages whose key occurred within the ``within`` previous queue offsets.

    ``schema`` of the batches to filter: the columns of the read, plus keys and offsets if missing. ``key_schema``: of
    the batches to ``note``.
    """

    def __init__(self, read_schema: pa.Schema, within: int) -> None:
        self.within: Final = within
        self._read_schema = read_schema
        more = [pa.field(name, kind) for name, kind in _TYPES.items() if name not in read_schema.names]
        self.schema: Final = pa.schema([*read_schema, *more])
        self.key_schema: Final = pa.schema(list(_TYPES.items()))
        self._last: dict[str, int] = {}
        self._order: deque[tuple[int, str]] = deque()

    def note(self, batch: pa.RecordBatch) -> None:
        """Record the keys of earlier messages."""
        self._new(batch)

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the read for messages that are not repeated."""
        new = self._new(batch)
        kept = batch if all(new) else batch.filter(pa.array(new, pa.bool_()))
        return kept.select(self._read_schema.names)

    def _new(self, batch: pa.RecordBatch) -> list[bool]:
        """For each message whether it is new; one without a key always is."""
        last, order, within = self._last, self._order, self.within
        new = []
        for key, offset in zip(batch.column(_KEY).to_pylist(), batch.column(_OFFSET).to_pylist(), strict=True):
            while order and order[0][0] < offset - within:
                old_offset, old_key = order.popleft()
                if last.get(old_key) == old_offset:
                    del last[old_key]
            new.append(key is None or key not in last)
            if key is not None:
                last[key] = offset
                order.append((offset, key))
        return new
