"""Converts decoded columns into Spark's batches: the selected columns, in order and types, of the wanted messages.

Decoders return raw columns: ``offset``, ``message_id``, ``timestamp``, ``attribute`` (a string) and ``value`` (binary),
as far as they are ``needed``. Here the constant columns are added, messages of other types are dropped, and the
attribute and the payload are converted as the options say.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, MapType, StringType

from metaq.model import TopicPartition
from metaq_spark.columns.row_layout import RowLayout
from metaq_spark.columns.schema import arrow_schema
from metaq_spark.columns.text import attribute_maps, text_of

RAW_COLUMNS: Final = ("offset", "message_id", "timestamp", "attribute", "value")
"""The columns that differ from row to row, in the order in which decoders hold them."""

Convert = Callable[[pa.Array], pa.Array]


class RecordBatches:
    """Creates record batches of ``schema``; ``constants`` are the columns with one value for all rows.

    ``needed`` are the ``raw_columns`` that decoders must return. ``wanted`` has the accepted values of column
    ``filtered``, ``None`` = all messages; a message without a value is never accepted.
    """

    def __init__(
        self,
        schema: pa.Schema,
        raw_columns: Sequence[str],
        constants: Mapping[str, tuple[object, pa.DataType]],
        converters: Mapping[str, Convert],
        filtered: str,
        wanted: Container[str] | None,
    ) -> None:
        self._schema, self._converters, self._filtered = schema, converters, filtered
        self._wanted = wanted
        self.needed = frozenset(set(raw_columns) & set(schema.names) | (set() if wanted is None else {filtered}))
        self._constants = {name: pa.scalar(value, kind) for name, (value, kind) in constants.items()}
        self._repeated: dict[str, pa.Array] = {}

    def batch(self, rows: int, raw: Mapping[str, pa.Array]) -> pa.RecordBatch | None:
        """The batch of ``rows`` decoded messages; ``None`` if none of them is wanted."""
        if self._wanted is not None:
            import pyarrow.compute as pc  # costs a small read more than the rest of it

            distinct = raw[self._filtered].drop_null().unique().to_pylist()
            found = [value for value in distinct if value in self._wanted]
            wanted = pc.is_in(raw[self._filtered], value_set=pa.array(found, pa.string()))
            if wanted.true_count < rows:
                rows, raw = wanted.true_count, {name: column.filter(wanted) for name, column in raw.items()}
        if not rows:
            return None
        columns = [self._column(name, rows, raw) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, rows: int, raw: Mapping[str, pa.Array]) -> pa.Array:
        if name in self._constants:
            return self._constant(name, rows)
        convert = self._converters.get(name)
        return raw[name] if convert is None else convert(raw[name])

    def _constant(self, name: str, rows: int) -> pa.Array:
        """The same value in every row; as long as the longest batch so far, for most are of one length."""
        known = self._repeated.get(name)
        if known is None or len(known) < rows:
            known = self._repeated[name] = pa.repeat(self._constants[name], rows)
        return known.slice(0, rows)


class BatchMaker(RecordBatches):
    """Makes the record batches of one partition. ``types`` are the attributes of the messages wanted."""

    def __init__(self, source: TopicPartition, layout: RowLayout, types: tuple[str, ...] | None = None) -> None:
        self.source = source
        constants = {
            "topic": (source.topic, pa.string()),
            "broker_id": (source.partition.broker_id, pa.int32()),
            "partition": (source.partition.index, pa.int32()),
        }
        super().__init__(arrow_schema(layout), RAW_COLUMNS, constants, _converters(layout), "attribute", types)


def _converters(layout: RowLayout) -> dict[str, Convert]:
    converters = value_converters(layout.type_of("value"))
    if isinstance(layout.type_of("attribute"), MapType):
        converters["attribute"] = attribute_maps
    return converters


def value_converters(kind: DataType | None) -> dict[str, Convert]:
    """Return the converter of the column ``value`` from bytes to ``kind``, by name; empty if it needs none."""
    match kind:
        case None | BinaryType():
            return {}
        case StringType():
            return {"value": text_of}
    from metaq_spark.columns.json_values import JsonColumn

    return {"value": JsonColumn(kind).parse}
