"""Attributes of the form ``k=v;k2=v2`` as maps.

Pieces are separated by semicolons; what is before the first ``=`` of a piece is the key, the rest of it the value.
Nothing is trimmed and nothing unescaped. A piece without ``=`` is a key with a null value, an empty piece is passed
over, and of equal keys the last one counts.
"""

from __future__ import annotations

import pyarrow as pa

from metaq_spark.columns.schema import arrow_type
from metaq_spark.source.row_layout import ATTRIBUTE_MAP


def parse_pairs(attribute: str) -> dict[str, str | None]:
    """The map that an attribute stands for."""
    pairs: dict[str, str | None] = {}
    for task_range in attribute.split(";"):
        if task_range:
            key, equals, value = task_range.partition("=")
            pairs[key] = value if equals else None
    return pairs


def attribute_maps(column: pa.Array) -> pa.Array:
    """A string column as maps; null stays null. Each different attribute is parsed once."""
    encoded = column.dictionary_encode()
    maps = [list(parse_pairs(attribute).items()) for attribute in encoded.dictionary.to_pylist()]
    return pa.array(maps, arrow_type(ATTRIBUTE_MAP)).take(encoded.indices)
