"""The columns that a write takes, and where they are in a given DataFrame. Checked before any work starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from metaq_spark.errors import ColumnError

SINK_COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "value": (BinaryType, StringType),
    "attribute": (StringType,),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "key": (BinaryType, StringType, IntegerType, LongType),
}
"""Every column of a write and its types. Only ``value`` is required."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Where each column is in a record batch; ``None`` = the DataFrame has none."""

    value: int
    attribute: int | None = None
    topic: int | None = None
    partition: int | None = None
    key: int | None = None


def find_sink_columns(schema: StructType, topic_option: str | None) -> SinkColumns:
    """Check the columns of a DataFrame that is to be written. Names are compared as Spark does, regardless of case.

    Raises:
        ColumnError: A column is unknown, there twice, of a wrong type, or missing.
    """
    places: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in SINK_COLUMNS:
            raise ColumnError(field.name, f"a write has no such column; it takes {describe_sink_columns()}")
        if name in places:
            raise ColumnError(field.name, "the DataFrame has it twice")
        if not isinstance(field.dataType, SINK_COLUMNS[name]):
            allowed = " or ".join(kind().simpleString() for kind in SINK_COLUMNS[name])
            raise ColumnError(field.name, f"type {field.dataType.simpleString()} is not allowed; it must be {allowed}")
        places[name] = place
    if "value" not in places:
        raise ColumnError(
            "value", f"it is required: the payload of the message. A write takes {describe_sink_columns()}"
        )
    if "topic" not in places and topic_option is None:
        raise ColumnError("topic", "without the option topic, a column topic (string) must name the topic of every row")
    return SinkColumns(**places)


def describe_sink_columns() -> str:
    """The columns with their types, as messages show them."""
    return ", ".join(
        f"{name} ({' or '.join(kind().simpleString() for kind in kinds)})" for name, kinds in SINK_COLUMNS.items()
    )
