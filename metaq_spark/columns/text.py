"""Bytes to strings: UTF-8 as it is, U+FFFD where it is none.

Spark's strings must be UTF-8. Arrow checks a whole column at once, so only a column with a fault in it is looked at
row by row.
"""

from __future__ import annotations

import pyarrow as pa


def text_of(column: pa.Array) -> pa.Array:
    """A binary column as strings; shares its memory if all of it is UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in column.to_pylist()]
        return pa.array(texts, pa.string())
