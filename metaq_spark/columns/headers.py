"""Headers and keys as Spark's Kafka source and sink have them, from and to what messages have here.

A header is a pair of a name and bytes. MetaQ has them as the pairs ``k=v;k2=v2`` of the attribute, RocketMQ as
properties; both are text, so the bytes must be UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from metaq.formats.rocketmq.properties import RESERVED
from metaq_spark.columns.row_layout import HEADERS
from metaq_spark.columns.text import parse_pairs
from metaq_spark.errors import RowError
from metaq_spark.spark_version import arrow_type

_TYPE: Final = arrow_type(HEADERS)
Pairs = list[dict[str, Any]]
"""The headers of a message, as Arrow has them: ``{"key": name, "value": bytes}``."""


def headers_of_attributes(column: pa.Array) -> pa.Array:
    """Headers of attributes; null where a message has no attribute. Each different attribute is parsed once."""
    encoded = column.dictionary_encode()
    headers = [_headers(parse_pairs(attribute)) for attribute in encoded.dictionary.to_pylist()]
    return pa.array(headers, _TYPE).take(encoded.indices)


def headers_of_properties(column: pa.Array) -> pa.Array:
    """Headers of maps of properties, without RocketMQ's reserved properties."""
    rows = (dict(pairs) for pairs in column.to_pylist())
    own = ({name: value for name, value in pairs.items() if name not in RESERVED} for pairs in rows)
    return pa.array([_headers(pairs) or None for pairs in own], _TYPE)


def keys_as_bytes(column: pa.Array) -> pa.Array:
    """Keys of messages as Kafka's column ``key``."""
    return column.cast(pa.binary())


def attributes_of_headers(column: pa.Array, place: str, first_row: int) -> pa.Array:
    """The attribute of each row; null where it has no headers. ``place`` and ``first_row``: for errors.

    Raises:
        RowError: A header cannot be a pair of an attribute.
    """
    return pa.array(_each(column, place, first_row, _attribute), pa.string())


def properties_of_headers(column: pa.Array, place: str, first_row: int) -> pa.MapArray:
    """The properties of each row. Raises as ``attributes_of_headers``."""
    return pa.array(_each(column, place, first_row, _properties), pa.map_(pa.string(), pa.string()))


def _headers(pairs: Mapping[str, str | None]) -> Pairs:
    return [{"key": name, "value": None if value is None else value.encode()} for name, value in pairs.items()]


def _each(column: pa.Array, place: str, first_row: int, convert: Callable[[Pairs], Any]) -> list[Any]:
    found = []
    for row, headers in enumerate(column.to_pylist()):
        try:
            found.append(convert(headers or []))
        except ValueError as error:
            raise RowError(f"row {first_row + row + 1} of {place}", f"its headers: {error}") from None
    return found


def _attribute(headers: Pairs) -> str | None:
    pairs = []
    for name, value in map(_text, headers):
        if not name or "=" in name or ";" in name + (value or ""):
            raise ValueError(f"{name[:60]!r} cannot be a pair of an attribute: no = in its name, and no ; in either")
        pairs.append(name if value is None else f"{name}={value}")
    return ";".join(pairs) or None


def _properties(headers: Pairs) -> list[tuple[str, str | None]]:
    return list(dict(map(_text, headers)).items())


def _text(header: dict[str, Any]) -> tuple[str, str | None]:
    name, value = header["key"] or "", header["value"]
    try:
        return name, None if value is None else value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the value of {name[:60]!r} is not UTF-8, and messages have text there") from None
