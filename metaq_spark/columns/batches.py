"""From what was decoded to what Spark gets: the columns asked for, in their order and types, of the messages wanted.

Decoders give raw columns: ``offset``, ``message_id``, ``timestamp``, ``attribute`` (a string) and ``value`` (binary),
as far as they are ``needed``. Here the columns that are the same in every row are added, messages of other types are
taken out, and the attribute and the payload get the form that the options ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, MapType, StringType

from metaq.model import TopicPartition
from metaq_spark.columns.row_layout import RowLayout
from metaq_spark.columns.schema import arrow_schema
from metaq_spark.columns.text import attribute_maps, text_of

RAW_COLUMNS: Final = ("offset", "message_id", "timestamp", "attribute", "value")
"""The columns that differ from row to row, in the order in which decoders hold them."""

Convert = Callable[[pa.Array], pa.Array]


class BatchMaker:
    """Makes the record batches of one partition.

    ``needed`` are the raw columns that decoders have to give. ``types`` are the attributes of the messages wanted,
    ``None`` = all messages; a message without an attribute is never among them.
    """

    def __init__(self, source: TopicPartition, layout: RowLayout, types: tuple[str, ...] | None = None) -> None:
        self.source, self._layout, self._schema = source, layout, arrow_schema(layout)
        self._types = None if types is None else pa.array(types, pa.string())
        filtered_by = set() if types is None else {"attribute"}
        self.needed = frozenset(filtered_by | set(RAW_COLUMNS) & set(layout.names))
        self._constants = {
            "topic": pa.scalar(source.topic, pa.string()),
            "broker_id": pa.scalar(source.partition.broker_id, pa.int32()),
            "partition": pa.scalar(source.partition.index, pa.int32()),
        }
        self._repeated: dict[str, pa.Array] = {}
        self._converters = _converters(layout)

    def batch(self, rows: int, raw: Mapping[str, pa.Array]) -> pa.RecordBatch | None:
        """The batch of ``rows`` decoded messages; ``None`` if none of them is wanted."""
        if self._types is not None:
            import pyarrow.compute as pc  # costs a small read more than the rest of it

            wanted = pc.is_in(raw["attribute"], value_set=self._types)
            if wanted.true_count < rows:
                rows, raw = wanted.true_count, {name: column.filter(wanted) for name, column in raw.items()}
        if not rows:
            return None
        columns = [self._column(name, rows, raw) for name in self._layout.names]
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


def _converters(layout: RowLayout) -> dict[str, Convert]:
    converters: dict[str, Convert] = {}
    if isinstance(layout.type_of("attribute"), MapType):
        converters["attribute"] = attribute_maps
    match layout.type_of("value"):
        case None | BinaryType():
            pass
        case StringType():
            converters["value"] = text_of
        case nested:
            from metaq_spark.columns.json_values import JsonColumn

            converters["value"] = JsonColumn(nested).parse
    return converters
