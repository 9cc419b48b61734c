"""A read has fixed columns; this refuses a schema that a user asks for instead."""

from __future__ import annotations

from pyspark.sql.types import StructType

from metaq_spark.columns.schema import READ_COLUMNS, READ_DDL
from metaq_spark.errors import ColumnError


def check_read_schema(schema: StructType) -> None:
    """Check that Spark is going to use the columns that a read has.

    Raises:
        ColumnError: A schema was given to the reader. Spark takes it as it is and asks nobody, so this is where it is
        met.
    """
    wanted = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    offered = [(name, spark_type) for name, spark_type, _ in READ_COLUMNS]
    for place, column in enumerate(wanted):
        if place >= len(offered) or column != offered[place]:
            raise ColumnError(column[0], _refusal(f"has type {column[1]} at place {place + 1} of the schema given"))
    if len(wanted) < len(offered):
        raise ColumnError(offered[len(wanted)][0], _refusal("is missing from the schema given"))


def _refusal(what: str) -> str:
    return f"it {what}, but a read has the columns {READ_DDL}; leave .schema(...) out and select from these"
