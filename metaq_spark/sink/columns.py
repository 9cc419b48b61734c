"""The columns of a write, and their positions in a DataFrame. Checked before any work starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from metaq_spark.errors import ColumnError


@dataclass(frozen=True, slots=True)
class SinkColumn:
    """A column of a write: the types that it may have, and what the documentation says."""

    types: tuple[type[DataType], ...]
    doc: str
    exact: DataType | None = None
    """The type with its parts, if they are not strings."""

    @property
    def spelled(self) -> str:
        """The types as Spark SQL spells them. Elements of arrays and maps are strings, unless ``exact`` says more."""
        if self.exact is not None:
            return self.exact.simpleString()
        nested = {ArrayType: "array<string>", MapType: "map<string,string>"}
        return " or ".join(nested.get(kind) or kind().simpleString() for kind in self.types)


ColumnTypes = Mapping[str, SinkColumn]
"""Every column that a format's writes take. Only ``value`` is required."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Position of each column in a record batch; ``None`` = the DataFrame does not have it.

    ``partition`` is the number of the row's partition in the topic's list; ``partition_name`` the format's name for it.
    ``others``: the columns that only the format's encoder reads.
    """

    value: int
    topic: int | None = None
    partition: int | None = None
    key: int | None = None
    others: Mapping[str, int] = field(default_factory=dict)
    partition_name: str = "partition"


def find_sink_columns(
    schema: StructType, topic_option: str | None, types: ColumnTypes, partition_name: str = "partition"
) -> SinkColumns:
    """Check the columns of a DataFrame to write. Names are compared regardless of case, as in Spark.

    ``types``: the format's columns; ``partition_name``: the column with the partition.

    Raises:
        ColumnError: A column is unknown, duplicate, of a wrong type, or missing.
    """
    places: dict[str, int] = {}
    for place, column in enumerate(schema.fields):
        name = column.name.lower()
        if name not in types:
            raise ColumnError(column.name, f"a write has no such column; it takes {describe_sink_columns(types)}")
        if name in places:
            raise ColumnError(column.name, "the DataFrame has it twice")
        exact = types[name].exact or column.dataType
        if not isinstance(column.dataType, types[name].types) or exact.simpleString() != column.dataType.simpleString():
            given = column.dataType.simpleString()
            raise ColumnError(column.name, f"type {given} is not allowed; it must be {types[name].spelled}")
        places[name] = place
    if "headers" in places and (also := {"attribute", "properties"} & places.keys()):
        raise ColumnError("headers", f"it says the same as column {min(also)}; a write takes one of them")
    if "value" not in places:
        raise ColumnError(
            "value", f"it is required: the payload of the message. A write takes {describe_sink_columns(types)}"
        )
    if "topic" not in places and topic_option is None:
        raise ColumnError("topic", "without the option topic, a column topic (string) must name the topic of every row")
    roles = {"value", "topic", "key", partition_name}
    return SinkColumns(
        value=places["value"],
        topic=places.get("topic"),
        partition=places.get(partition_name),
        key=places.get("key"),
        others={name: place for name, place in places.items() if name not in roles},
        partition_name=partition_name,
    )


def describe_sink_columns(types: ColumnTypes) -> str:
    """The columns with their types, as messages show them."""
    return ", ".join(f"{name} ({column.spelled})" for name, column in types.items())
