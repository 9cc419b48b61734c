"""The columns of a read in Arrow's types.

Spark requires that a batch's Arrow schema equals its own exactly, in names, order, types and nullability. So Spark's
own function converts its types to Arrow's.
"""

from __future__ import annotations

import functools
from typing import Final

import pyarrow as pa

from metaq_spark.columns.row_layout import COLUMN_TYPES, RowLayout, message_layout
from metaq_spark.spark_version import arrow_type


@functools.cache
def arrow_schema(layout: RowLayout) -> pa.Schema:
    return pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in layout.schema.fields])


READ_COLUMNS: Final = tuple((name, kind.simpleString(), arrow_type(kind)) for name, kind in COLUMN_TYPES.items())
"""Name, Spark SQL type and Arrow type of every column of a read, in order; all nullable."""

ARROW_SCHEMA: Final = arrow_schema(message_layout())
"""The schema of a read's batches by default."""
