"""Converts decoded columns into Spark's batches: the selected columns, in order and types, of the wanted messages.

Decoders return raw columns: ``offset``, ``message_id``, ``timestamp``, ``attribute`` (a string) and ``value`` (binary),
as far as they are ``needed``. Here the constant columns are added, messages of other types are dropped, and the
attribute and the payload are converted as the options say. Payloads that are malformed JSON may drop their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, MapType, StringType

from metaq.model import TopicPartition
from metaq_spark.columns.json_rules import DROP, FAIL, PERMISSIVE, JsonRules
from metaq_spark.columns.row_layout import RowLayout
from metaq_spark.columns.schema import arrow_schema
from metaq_spark.columns.text import attribute_maps, text_of
from metaq_spark.errors import MalformedValue

if TYPE_CHECKING:
    from metaq_spark.columns.json_values import JsonColumn

RAW_COLUMNS: Final = ("offset", "message_id", "timestamp", "attribute", "value")
"""The columns that differ from row to row, in the order in which decoders hold them."""

Convert = Callable[[pa.Array], pa.Array]

Derived = Mapping[str, tuple[str, Convert]]
"""Columns that are made of another one: their names, each with that column and how."""

NOTHING_DERIVED: Final[Derived] = MappingProxyType({})


class RecordBatches:
    """Creates record batches of ``schema``; ``constants`` are the columns with one value for all rows.

    ``needed`` are the ``raw_columns`` that decoders must return. ``wanted`` accepts values of column
    ``filtered``, ``None`` = all messages; a message without a value is never accepted. ``values``: how payloads are
    parsed, if some of them may be refused. ``derived``: columns that are made of a raw one.
    """

    def __init__(
        self,
        schema: pa.Schema,
        raw_columns: Sequence[str],
        constants: Mapping[str, tuple[object, pa.DataType]],
        converters: Mapping[str, Convert],
        filtered: str,
        wanted: Callable[[str], bool] | None,
        values: CheckedValues | None = None,
        derived: Derived = NOTHING_DERIVED,
    ) -> None:
        self._schema, self._converters, self._filtered = schema, converters, filtered
        self._wanted, self._values, self._derived = wanted, values, derived
        needed = set(raw_columns) & set(schema.names) | (set() if wanted is None else {filtered})
        needed |= {derived[name][0] for name in schema.names if name in derived}
        self.needed = frozenset(needed | (set() if values is None else {values.offset}))
        # Made here, although a batch may need none: creating the first one makes pyarrow import modules.
        self._constants = {name: pa.scalar(value, kind) for name, (value, kind) in constants.items()}
        self._repeated: dict[str, pa.Array] = {}

    def batch(self, rows: int, raw: Mapping[str, pa.Array]) -> pa.RecordBatch | None:
        """The batch of ``rows`` decoded messages; ``None`` if none of them is wanted."""
        if self._wanted is not None:
            import pyarrow.compute as pc  # the import costs a small read more than everything else in it

            distinct = raw[self._filtered].drop_null().unique().to_pylist()
            found = pa.array(filter(self._wanted, distinct), pa.string())
            wanted = pc.is_in(raw[self._filtered], value_set=found)
            if wanted.true_count < rows:
                rows, raw = wanted.true_count, {name: column.filter(wanted) for name, column in raw.items()}
        if rows and self._values is not None:
            rows, raw = self._values.parse(rows, raw)
        if not rows:
            return None
        columns = [self._column(name, rows, raw) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, rows: int, raw: Mapping[str, pa.Array]) -> pa.Array:
        if name in self._constants:
            return self._constant(name, rows)
        if name in self._derived:
            of, make = self._derived[name]
            return make(raw[of])
        convert = self._converters.get(name)
        return raw[name] if convert is None else convert(raw[name])

    def _constant(self, name: str, rows: int) -> pa.Array:
        """Return a column of ``rows`` equal values.

        The longest one so far is kept and sliced, because most batches have the same length.
        """
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
        values = checked_values(layout.types.get("value"), layout.json, source, "offset")
        converters = _converters(layout, checked=values is not None)
        wanted = None if types is None else types.__contains__
        super().__init__(
            arrow_schema(layout), RAW_COLUMNS, constants, converters, "attribute", wanted, values, _derived(layout)
        )


class CheckedValues:
    """Parses the column ``value`` as JSON; drops the rows of malformed payloads, or fails, as ``rules`` say.

    ``offset`` is the column with the offsets of the messages, for errors.
    """

    def __init__(self, column: JsonColumn, rules: JsonRules, source: TopicPartition, offset: str) -> None:
        self._column, self._mode, self._source, self.offset = column, rules.mode, source, offset

    def parse(self, rows: int, raw: Mapping[str, pa.Array]) -> tuple[int, Mapping[str, pa.Array]]:
        """Return the number of rows that stay, and their columns, with the parsed value.

        Raises:
            MalformedValue: A payload is malformed, and the mode is ``failfast``.
        """
        parsed, malformed = self._column.parse_noticing(raw["value"])
        columns = {**raw, "value": parsed}
        if malformed and self._mode == FAIL:
            first = malformed[0]
            raise MalformedValue(str(self._source), raw[self.offset][first.row].as_py(), first.reason)
        if not malformed or self._mode != DROP:
            return rows, columns
        bad = {one.row for one in malformed}
        kept = pa.array([row not in bad for row in range(rows)])
        return rows - len(bad), {name: column.filter(kept) for name, column in columns.items()}


def checked_values(
    kind: DataType | None, rules: JsonRules, source: TopicPartition, offset: str
) -> CheckedValues | None:
    """Return how payloads of type ``kind`` are parsed, if some of them may be refused; ``None`` otherwise."""
    if rules.mode == PERMISSIVE or kind is None:
        return None
    from metaq_spark.columns.json_values import JsonColumn

    return CheckedValues(JsonColumn(kind, rules), rules, source, offset)


def _derived(layout: RowLayout) -> Derived:
    if "headers" not in layout.types:
        return NOTHING_DERIVED
    from metaq_spark.columns.headers import headers_of_attributes

    return {"headers": ("attribute", headers_of_attributes)}


def _converters(layout: RowLayout, *, checked: bool) -> dict[str, Convert]:
    converters = {} if checked else value_converters(layout.types.get("value"), layout.json)
    if isinstance(layout.types.get("attribute"), MapType):
        converters["attribute"] = attribute_maps
    return converters


def value_converters(kind: DataType | None, rules: JsonRules) -> dict[str, Convert]:
    """Return the converter of the column ``value`` from bytes to ``kind``, by name; empty if it needs none."""
    match kind:
        case None | BinaryType():
            return {}
        case StringType():
            return {"value": text_of}
    from metaq_spark.columns.json_values import JsonColumn

    return {"value": JsonColumn(kind, rules).parse}
