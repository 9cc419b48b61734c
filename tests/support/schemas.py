"""Schemas of rows, in short."""

from __future__ import annotations

from pyspark.sql.types import DataType, StructField, StructType


def struct(**fields: DataType) -> StructType:
    """Nullable fields in the order in which they are named."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])
