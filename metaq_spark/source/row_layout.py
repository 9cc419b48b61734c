"""What the rows of a read look like: which columns, in which order, of which types.

Spark gives a Python source no word about the columns that a query needs, so options say it: ``columns``,
``valueFormat`` with ``valueSchema``, ``attributeFormat``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
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

from metaq_spark.source.value_schema import quote, spell_type

COLUMN_TYPES: Final[Mapping[str, DataType]] = {
    "topic": StringType(),
    "broker_id": IntegerType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "message_id": LongType(),
    "timestamp": TimestampType(),
    "attribute": StringType(),
    "value": BinaryType(),
}
"""Every column of a read, in order, with its type unless options say otherwise; all nullable."""

ATTRIBUTE_MAP: Final = MapType(StringType(), StringType())
"""The type of ``attribute`` as a map."""


@dataclass(frozen=True)
class RowLayout:
    """The columns of a read. A nested ``value_type`` means that payloads are JSON."""

    names: tuple[str, ...] = tuple(COLUMN_TYPES)
    attribute_type: DataType = COLUMN_TYPES["attribute"]
    value_type: DataType = COLUMN_TYPES["value"]

    @property
    def schema(self) -> StructType:
        """The columns as Spark's type."""
        chosen = {"attribute": self.attribute_type, "value": self.value_type}
        return StructType([StructField(name, chosen.get(name, COLUMN_TYPES[name])) for name in self.names])

    @property
    def ddl(self) -> str:
        """The columns as Spark SQL spells them."""
        return ", ".join(f"{quote(field.name)} {spell_type(field.dataType)}" for field in self.schema.fields)

    def __contains__(self, name: str) -> bool:
        return name in self.names


def parse_columns(text: str) -> tuple[str, ...]:
    """Names of columns separated by commas, in any case, in the order given.

    Raises:
        ValueError: One is no column of a read, or is there twice.
    """
    allowed = f"a read has {', '.join(COLUMN_TYPES)}"
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError(f"expected names of columns, separated by commas; {allowed}")
    for name in names:
        if name not in COLUMN_TYPES:
            raise ValueError(f"there is no column {name}; {allowed}")
        if names.count(name) > 1:
            raise ValueError(f"{name} is there twice; each column can be there once; {allowed}")
    return names
