"""JSON payloads as columns of a Spark type.

A payload that is not JSON, or does not fit the type, becomes null; a part that does not fit becomes null alone. No
conversion changes the value: no rounding, except of decimals to their scale, no numbers from strings, no strings from
numbers.

========================================  ======================================================================
Spark type                                JSON that fits
========================================  ======================================================================
BOOLEAN, STRING                           true, false; a string
TINYINT, SMALLINT, INT, BIGINT            a number without point and exponent, within the range
FLOAT, DOUBLE                             any number within the range
DECIMAL(p,s)                              a number; rounded half up to s digits after the point, then within p
BINARY                                    a string, base64
DATE                                      a string, YYYY-MM-DD
TIMESTAMP                                 a string, ISO 8601 with a time zone
TIMESTAMP_NTZ                             a string, ISO 8601 without one
ARRAY, MAP, STRUCT                        an array; an object; an object (missing members are null, others ignored)
========================================  ======================================================================

``JsonRules`` say what happens to a payload of which not everything fits, as the modes of Spark's own JSON reader do.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from metaq_spark.columns.json_rules import DEFAULT_RULES, PERMISSIVE, JsonRules
from metaq_spark.spark_version import arrow_type

Coerce = Callable[[Any], Any]
"""Converts a parsed JSON value for Arrow, or returns ``None``."""

Note = Callable[[str], None]
"""Takes why a value does not fit."""

_SHOWN_MAX: Final = 60

_INTEGER_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_FLOAT_MAX: Final = (2 - 2**-23) * 2.0**127
_ISO_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DIGITS: Final = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class Malformed:
    """Row ``row`` of a column is malformed, for ``reason``."""

    row: int
    reason: str


class JsonColumn:
    """Parses a column of payloads into one of ``kind``. Notices what does not fit only if ``rules`` need it."""

    def __init__(self, kind: DataType, rules: JsonRules = DEFAULT_RULES) -> None:
        self._type = arrow_type(kind)
        self._rules = rules
        self._corrupt_field = self._rules.field_of(kind)
        self.notices = self._rules.mode != PERMISSIVE or self._corrupt_field is not None
        self._reasons: list[str] = []
        self._coerce = _coercion(
            _without(kind, self._corrupt_field), "", self._reasons.append if self.notices else None
        )
        exact = decimal.Decimal if _has_decimals(kind) else None
        self._decoder = json.JSONDecoder(parse_constant=_refuse, parse_float=exact)

    def parse(self, column: pa.Array) -> pa.Array:
        """A binary column of JSON texts in UTF-8 as a column of the type."""
        return self.parse_noticing(column)[0]

    def parse_noticing(self, column: pa.Array) -> tuple[pa.Array, list[Malformed]]:
        """The same, with the malformed rows; none of them is noticed unless ``notices``."""
        values, malformed = [], []
        for row, raw in enumerate(column.to_pylist()):
            value = self._value(raw)
            if self._reasons:
                malformed.append(Malformed(row, self._reasons[0]))
                self._reasons.clear()
                value = self._with_text(value, raw)
            values.append(value)
        return pa.array(values, self._type), malformed

    def _value(self, raw: bytes) -> Any:
        try:
            return self._coerce(self._decoder.decode(raw.decode()))
        except (ValueError, RecursionError, ArithmeticError) as error:  # no UTF-8, no JSON, no number of a sane size
            if self.notices:
                self._reasons.insert(0, f"it is not JSON: {str(error) or type(error).__name__}")
            return None

    def _with_text(self, value: Any, raw: bytes) -> Any:
        if self._corrupt_field is None:
            return value
        return (value or {}) | {self._corrupt_field: raw.decode("utf-8", "replace")}


def _without(kind: DataType, name: str | None) -> DataType:
    """A struct without one field, which is not read from JSON."""
    if name is None or not isinstance(kind, StructType):
        return kind
    return StructType([field for field in kind.fields if field.name != name])


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _has_decimals(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_decimals(field.dataType) for field in kind.fields)
        case ArrayType():
            return _has_decimals(kind.elementType)
        case MapType():
            return _has_decimals(kind.valueType)
        case _:
            return isinstance(kind, DecimalType)


def _coercion(kind: DataType, path: str, note: Note | None) -> Coerce:
    """Return what converts values of ``kind`` at ``path``; ``note``: also says what does not fit."""
    coerce = _coercion_of(kind, path, note)
    return coerce if note is None else _noting(coerce, kind, path, note)


def _noting(coerce: Coerce, kind: DataType, path: str, note: Note) -> Coerce:
    where = f"its field {path}" if path else "it"

    def check(value: Any) -> Any:
        found = coerce(value)
        if found is None and value is not None:
            note(f"{where} is {_shown(value)}, which is no {kind.simpleString()[:_SHOWN_MAX]}")
        return found

    return check


def _shown(value: Any) -> str:
    text = _SURROGATE.sub("\ufffd", json.dumps(value, default=str, ensure_ascii=False))
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."


def _coercion_of(kind: DataType, path: str, note: Note | None) -> Coerce:
    match kind:
        case StructType():
            inside = [(field.name, f"{path}.{field.name}".lstrip("."), field.dataType) for field in kind.fields]
            return _struct([(name, _coercion(of, below, note)) for name, below, of in inside])
        case ArrayType():
            return _array(_coercion(kind.elementType, f"{path}[]", note))
        case MapType():
            return _map(_coercion(kind.valueType, f"{path}{{}}", note))
        case DecimalType():
            return _decimal(kind.precision, kind.scale)
        case _ if type(kind) in _INTEGER_BITS:
            return _integer(_INTEGER_BITS[type(kind)])
        case _:
            return _ATOMIC[type(kind)]


def _struct(fields: list[tuple[str, Coerce]]) -> Coerce:
    def coerce(value: Any) -> Any:
        return {name: part(value.get(name)) for name, part in fields} if isinstance(value, dict) else None

    return coerce


def _array(element: Coerce) -> Coerce:
    def coerce(value: Any) -> Any:
        return [element(part) for part in value] if isinstance(value, list) else None

    return coerce


def _map(member: Coerce) -> Coerce:
    def coerce(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        return list({_string(key): member(part) for key, part in value.items()}.items())

    return coerce


def _integer(bits: int) -> Coerce:
    end = 1 << bits - 1

    def coerce(value: Any) -> Any:
        return value if type(value) is int and -end <= value < end else None

    return coerce


def _decimal(precision: int, scale: int) -> Coerce:
    step, end = decimal.Decimal(1).scaleb(-scale), decimal.Decimal(10) ** (precision - scale)

    def coerce(value: Any) -> Any:
        if type(value) is not int and type(value) is not decimal.Decimal:
            return None
        try:
            rounded = decimal.Decimal(value).quantize(step, context=_DIGITS)
        except decimal.InvalidOperation:  # more digits than any decimal has
            return None
        return rounded if -end < rounded < end else None

    return coerce


def _boolean(value: Any) -> Any:
    return value if type(value) is bool else None


def _string(value: Any) -> Any:
    if type(value) is not str:
        return None
    return (
        value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    )  # half a character: JSON can write it, UTF-8 not


def _double(value: Any) -> Any:
    if type(value) is bool or not isinstance(value, int | float | decimal.Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _float(value: Any) -> Any:
    number = _double(value)
    return number if number is not None and abs(number) <= _FLOAT_MAX else None


def _binary(value: Any) -> Any:
    return base64.b64decode(value, validate=True) if type(value) is str else None


def _date(value: Any) -> Any:
    return dt.date.fromisoformat(value) if type(value) is str and _ISO_DATE.fullmatch(value) else None


def _timestamp(value: Any) -> Any:
    moment = dt.datetime.fromisoformat(value) if type(value) is str else None
    return moment.astimezone(dt.UTC) if moment is not None and moment.tzinfo is not None else None


def _local_timestamp(value: Any) -> Any:
    moment = dt.datetime.fromisoformat(value) if type(value) is str else None
    return moment if moment is not None and moment.tzinfo is None else None


def _or_none(coerce: Coerce) -> Coerce:
    """``coerce``, with null for texts that it refuses."""

    def gentle(value: Any) -> Any:
        try:
            return coerce(value)
        except (ValueError, OverflowError):
            return None

    return gentle


_ATOMIC: Final[dict[type[DataType], Coerce]] = {
    BooleanType: _boolean,
    StringType: _string,
    DoubleType: _double,
    FloatType: _float,
    BinaryType: _or_none(_binary),
    DateType: _or_none(_date),
    TimestampType: _or_none(_timestamp),
    TimestampNTZType: _or_none(_local_timestamp),
}
