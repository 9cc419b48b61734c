"""A read has the columns that its options say; this refuses a schema that a user asks for instead."""

from __future__ import annotations

from pyspark.sql.types import StructType

from metaq_spark.errors import ColumnError
from metaq_spark.source.row_layout import RowLayout
from metaq_spark.source.value_schema import spell_type


def check_read_schema(schema: StructType, layout: RowLayout) -> None:
    """Check that Spark is going to use the columns that the read has by its options.

    Raises:
        ColumnError: A schema was given to the reader. Spark takes it as it is and asks nobody, so this is where it is
        met.
    """
    wanted, offered = _columns(schema), _columns(layout.schema)
    for place, column in enumerate(wanted):
        if place >= len(offered) or column != offered[place]:
            raise ColumnError(
                column[0], _refusal(f"has type {column[1]} at place {place + 1} of the schema given", layout)
            )
    if len(wanted) < len(offered):
        raise ColumnError(offered[len(wanted)][0], _refusal("is missing from the schema given", layout))


def _columns(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, spell_type(field.dataType)) for field in schema.fields]


def _refusal(what: str, layout: RowLayout) -> str:
    return (
        f"it {what}, but this read has the columns {layout.ddl}; leave .schema(...) out and select from these, "
        "or choose with the option columns"
    )
