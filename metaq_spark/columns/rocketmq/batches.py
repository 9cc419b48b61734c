"""From decoded records to what Spark gets: the columns asked for, in their order and types, of the messages wanted.

Decoders give the columns of ``RAW_COLUMNS`` that are ``needed``. Here the columns of the whole queue are added,
messages with other tags are taken out (a broker compares hashes of tags, which may coincide), and the body gets the
form that the options ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType

from metaq.model import TopicPartition
from metaq_spark.columns.rocketmq.layout import RAW_COLUMNS, RECORD_COLUMNS
from metaq_spark.columns.schema import arrow_type
from metaq_spark.columns.text import text_of

Convert = Callable[[pa.Array], pa.Array]

RAW_TYPES: Final = {name: arrow_type(RECORD_COLUMNS[name]) for name in RAW_COLUMNS}
"""The types that decoders give."""


class RecordBatchMaker:
    """Makes the record batches of one queue.

    ``schema`` has the columns asked for; ``value_type`` is the type of the column ``value``, if it is among them.
    ``tags`` are those of the messages wanted, ``None`` = all messages; one without a tag is never among them.
    """

    def __init__(
        self, source: TopicPartition, schema: pa.Schema, value_type: DataType | None, tags: frozenset[str] | None = None
    ) -> None:
        self.source, self._schema = source, schema
        self._tags = None if tags is None else pa.array(sorted(tags), pa.string())
        filtered_by = set() if tags is None else {"tags"}
        self.needed = frozenset(filtered_by | set(RAW_COLUMNS) & set(schema.names))
        self._constants = {
            "topic": pa.scalar(source.topic, pa.string()),
            "broker_name": pa.scalar(str(source.partition[0]), pa.string()),
            "queue_id": pa.scalar(source.partition[1], pa.int32()),
        }
        self._convert_value = _value_converter(value_type) if value_type is not None else None

    def batch(self, rows: int, raw: Mapping[str, pa.Array]) -> pa.RecordBatch | None:
        """The batch of ``rows`` decoded messages; ``None`` if none of them is wanted."""
        if self._tags is not None:
            import pyarrow.compute as pc  # costs a small read more than the rest of it

            wanted = pc.is_in(raw["tags"], value_set=self._tags)
            if wanted.true_count < rows:
                rows, raw = wanted.true_count, {name: column.filter(wanted) for name, column in raw.items()}
        if not rows:
            return None
        columns = [self._column(name, rows, raw) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, rows: int, raw: Mapping[str, pa.Array]) -> pa.Array:
        if name in self._constants:
            return pa.repeat(self._constants[name], rows)
        if name == "value" and self._convert_value is not None:
            return self._convert_value(raw[name])
        return raw[name]


def _value_converter(value_type: DataType) -> Convert | None:
    if isinstance(value_type, BinaryType):
        return None
    if isinstance(value_type, StringType):
        return text_of
    from metaq_spark.columns.json_values import JsonColumn

    return JsonColumn(value_type).parse
