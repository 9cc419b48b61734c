"""The layout of a read's rows: columns, order, types.

Spark does not tell a Python source which columns a query needs, so options select them: ``columns``, ``valueFormat``
with ``valueSchema``, ``attributeFormat``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from metaq_spark.columns.json_rules import DEFAULT_RULES, JsonRules
from metaq_spark.columns.value_schema import quote, spell_type
from metaq_spark.errors import ColumnError


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a read: its type unless options say otherwise, and what the documentation says."""

    name: str
    type: DataType
    doc: str


COLUMNS: Final = (
    Column("topic", StringType(), ""),
    Column("broker_id", IntegerType(), "0 to 1023"),
    Column("partition", IntegerType(), "index of the partition on its broker"),
    Column("offset", LongType(), "position of the message's first byte in its partition; grows, but not by 1"),
    Column("message_id", LongType(), "given by the broker"),
    Column(
        "timestamp", TimestampType(),
        "when the broker took the message, in milliseconds; null if the id says nothing about time, as with current "
        "Java brokers",
    ),
    Column(
        "attribute", StringType(),
        "null if the message has none. Bytes that are not UTF-8 are shown as U+FFFD",
    ),
    Column("value", BinaryType(), "the payload, unchanged"),
)  # fmt: skip
"""Every column of a read of MetaQ, in order; all nullable."""

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""The type of Kafka's column ``headers``."""

MORE_COLUMNS: Final = (
    Column(
        "headers", HEADERS,
        "the pairs `k=v;k2=v2` of the attribute as Kafka's source has headers; null without an attribute. Only if "
        "`columns` names it",
    ),
)  # fmt: skip
"""Columns of a read that are left out unless the option ``columns`` names them."""

COLUMN_TYPES: Final[Mapping[str, DataType]] = {column.name: column.type for column in COLUMNS}
MORE_TYPES: Final[Mapping[str, DataType]] = {column.name: column.type for column in MORE_COLUMNS}

ATTRIBUTE_MAP: Final = MapType(StringType(), StringType())
"""The type of ``attribute`` as a map."""


@dataclass(frozen=True)
class RowLayout:
    """The columns of a read, in order, each with its type. ``json``: where ``value`` is parsed, what is malformed."""

    fields: tuple[tuple[str, DataType], ...]
    json: JsonRules = DEFAULT_RULES

    @classmethod
    def of(cls, types: Mapping[str, DataType], names: Sequence[str] | None, json: JsonRules | None = None) -> RowLayout:
        """The columns ``names`` of ``types``, all if that is ``None``."""
        return cls(tuple((name, types[name]) for name in names or types), json or DEFAULT_RULES)

    @cached_property
    def types(self) -> dict[str, DataType]:
        """The type of each column, by its name, in order."""
        return dict(self.fields)

    @property
    def schema(self) -> StructType:
        """The columns as Spark's type."""
        return StructType([StructField(name, kind) for name, kind in self.fields])

    @property
    def ddl(self) -> str:
        """The columns as Spark SQL spells them."""
        return ", ".join(f"{quote(name)} {spell_type(kind)}" for name, kind in self.fields)

    def check(self, schema: StructType) -> None:
        """Check that Spark will use the columns that the options select.

        Raises:
            ColumnError: A schema was given to the reader. Spark uses it without asking the source, so it is checked
                here.
        """
        wanted = [(field.name, spell_type(field.dataType)) for field in schema.fields]
        offered = [(name, spell_type(kind)) for name, kind in self.fields]
        for place, column in enumerate(wanted):
            if place >= len(offered) or column != offered[place]:
                what = f"has type {column[1]} at place {place + 1} of the schema given"
                raise ColumnError(column[0], self._refusal(what))
        if len(wanted) < len(offered):
            raise ColumnError(offered[len(wanted)][0], self._refusal("is missing from the schema given"))

    def _refusal(self, what: str) -> str:
        return (
            f"it {what}, but this read has the columns {self.ddl}; leave .schema(...) out and select from these, "
            "or choose with the option columns"
        )


def message_layout(
    names: Sequence[str] | None = None,
    attribute_type: DataType = COLUMN_TYPES["attribute"],
    value_type: DataType = COLUMN_TYPES["value"],
    json: JsonRules | None = None,
) -> RowLayout:
    """The columns ``names`` of a read of MetaQ, all if that is ``None``. A nested ``value_type``: payloads are JSON."""
    types = {**COLUMN_TYPES, **MORE_TYPES, "attribute": attribute_type, "value": value_type}
    return RowLayout.of(types, names or tuple(COLUMN_TYPES), json)


def type_of_values(value_format: str, value_schema: DataType | None) -> DataType:
    """Return the type of the column ``value`` for the options ``valueFormat`` and ``valueSchema``."""
    return value_schema or (StringType() if value_format == "string" else BinaryType())


def choose_columns(text: str, offered: Collection[str]) -> tuple[str, ...]:
    """Parse names of columns separated by commas, in any case, in the given order.

    Raises:
        ValueError: A name is unknown or repeated.
    """
    allowed = f"a read has {', '.join(offered)}"
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError(f"expected names of columns, separated by commas; {allowed}")
    for name in names:
        if name not in offered:
            raise ValueError(f"there is no column {name}; {allowed}")
        if names.count(name) > 1:
            raise ValueError(f"{name} is there twice; each column can be there once; {allowed}")
    return names
