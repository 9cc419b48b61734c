"""Bytes to strings, and attributes of the form ``k=v;k2=v2`` to maps.

Invalid UTF-8 is replaced by U+FFFD, because Spark's strings must be UTF-8. Arrow checks a whole column at once, so only
a column with a fault is processed row by row.

In an attribute, pairs are separated by semicolons; the text before the first ``=`` of a pair is the key, the rest the
value. Nothing is trimmed or unescaped. A pair without ``=`` is a key with a null value, an empty pair is skipped, and
the last of equal keys counts.
"""

from __future__ import annotations

import pyarrow as pa

from metaq_spark.columns.row_layout import ATTRIBUTE_MAP
from metaq_spark.spark_version import arrow_type


def text_of(column: pa.Array) -> pa.Array:
    """Return a binary column as strings; shares its memory if all of it is UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in column.to_pylist()]
        return pa.array(texts, pa.string())


def parse_pairs(attribute: str) -> dict[str, str | None]:
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
