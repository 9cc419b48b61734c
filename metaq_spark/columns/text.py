"""Bytes to strings, and attributes of the form ``k=v;k2=v2`` to maps.

Strings are UTF-8 as it is, U+FFFD where it is none. Spark's strings must be UTF-8. Arrow checks a whole column at once,
so only a column with a fault in it is looked at row by row.

In an attribute, pairs are separated by semicolons; what is before the first ``=`` of a pair is the key, the rest of it
the value. Nothing is trimmed and nothing unescaped. A pair without ``=`` is a key with a null value, an empty one is
passed over, and of equal keys the last one counts.
"""

from __future__ import annotations

import pyarrow as pa

from metaq_spark.columns.row_layout import ATTRIBUTE_MAP
from metaq_spark.columns.schema import arrow_type


def text_of(column: pa.Array) -> pa.Array:
    """A binary column as strings; shares its memory if all of it is UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in column.to_pylist()]
        return pa.array(texts, pa.string())


def parse_pairs(attribute: str) -> dict[str, str | None]:
    """The map that an attribute stands for."""
    pairs: dict[str, str | None] = {}
    for pair in attribute.split(";"):
        if pair:
            key, equals, value = pair.partition("=")
            pairs[key] = value if equals else None
    return pairs


def attribute_maps(column: pa.Array) -> pa.Array:
    """A string column as maps; null stays null. Each different attribute is parsed once."""
    encoded = column.dictionary_encode()
    maps = [list(parse_pairs(attribute).items()) for attribute in encoded.dictionary.to_pylist()]
    return pa.array(maps, arrow_type(ATTRIBUTE_MAP)).take(encoded.indices)
