"""Parses the option ``valueSchema``, the type of JSON values in Spark SQL's notation.

::

    schema   fields | nested                        id BIGINT, name STRING | ARRAY<INT>
    fields   field {"," field}
    field    name [":"] type                        a name in backticks may have any characters
    type     atomic | nested
    nested   ARRAY<type> | MAP<STRING, type> | STRUCT<fields>

Spark's own parser is in the JVM, which the processes that read options cannot call. Everything may be null, as with
``from_json``; types without a JSON form are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_ATOMIC: Final[Mapping[str, type[DataType]]] = {
    "boolean": BooleanType, "tinyint": ByteType, "byte": ByteType, "smallint": ShortType, "short": ShortType,
    "int": IntegerType, "integer": IntegerType, "bigint": LongType, "long": LongType, "float": FloatType,
    "real": FloatType, "double": DoubleType, "string": StringType, "binary": BinaryType, "date": DateType,
    "timestamp": TimestampType, "timestamp_ntz": TimestampNTZType,
}  # fmt: skip
_DECIMAL: Final = frozenset({"decimal", "dec", "numeric"})
_DIGITS_MAX: Final = 38
_ALLOWED: Final = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, TIMESTAMP, "
    "TIMESTAMP_NTZ, ARRAY<...>, MAP<STRING, ...> and STRUCT<...>"
)
_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))", re.UNICODE)
_NESTED: Final = re.compile(r"\s*(?:struct|array|map)\s*<", re.IGNORECASE)
_DEPTH_MAX: Final = 50
_END: Final = ""


def parse_value_schema(text: str) -> DataType:
    """Return the type for ``text``: a struct for a list of fields, or an explicit array, map or struct.

    Raises:
        ValueError: It is not a type; the error has the position and what is allowed there.
    """
    parser = _Parser(text)
    found = parser.type_at(0) if _NESTED.match(text) else parser.fields(until=_END, depth=0)
    parser.expect(_END)
    return found


def spell_type(kind: DataType) -> str:
    """``kind`` as Spark SQL spells it, with names in backticks, so that Spark reads any name back."""
    match kind:
        case StructType():
            return f"struct<{','.join(f'{quote(field.name)}:{spell_type(field.dataType)}' for field in kind.fields)}>"
        case ArrayType():
            return f"array<{spell_type(kind.elementType)}>"
        case MapType():
            return f"map<{spell_type(kind.keyType)},{spell_type(kind.valueType)}>"
        case _:
            return kind.simpleString()


def quote(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("`", "``") + "`"


class _Parser:
    """Recursive descent over tokens: (text, whether it was in backticks, where it begins)."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"{text[at:].strip()[:20]!r} at character {at + 1} belongs to no type")
            quoted, word, sign = match.groups()
            name = quoted.replace("``", "`") if quoted else word or sign
            self._tokens.append((name, quoted is not None, match.end() - len(match[0].strip())))
            at = match.end()
        self._tokens.append((_END, False, len(text)))
        self._next = 0

    def fields(self, until: str, depth: int) -> StructType:
        """``name type, ...`` up to ``until``, which is left to the caller."""
        struct, seen = StructType(), set[str]()
        while True:
            name, quoted, at = self._take()
            if not (quoted or re.fullmatch(r"\w+", name)):
                raise ValueError(
                    f"expected the name of a field at character {at + 1}, such as in: id BIGINT, name STRING"
                )
            if name.lower() in seen:
                raise ValueError(f"field {name} is there twice")
            seen.add(name.lower())
            self._skip(":")
            struct = StructType([*struct.fields, StructField(name, self.type_at(depth + 1))])
            if self._peek() == until:
                return struct
            self.expect(",", or_else=until)

    def type_at(self, depth: int) -> DataType:
        """The type that begins at the next token."""
        word, quoted, at = self._take()
        kind = word.lower()
        if depth > _DEPTH_MAX:
            raise ValueError(f"types are nested more than {_DEPTH_MAX} deep")
        if not quoted and kind in _DECIMAL:
            return self._decimal()
        if not quoted and kind in ("array", "map", "struct"):
            self.expect("<")
            nested = self._nested(kind, depth)
            self.expect(">")
            return nested
        if quoted or kind not in _ATOMIC:
            raise ValueError(
                f"{word or 'the end'!r} at character {at + 1} is no type of a JSON value; there are {_ALLOWED}"
            )
        return _ATOMIC[kind]()

    def _nested(self, kind: str, depth: int) -> DataType:
        if kind == "struct":
            return self.fields(until=">", depth=depth)
        if kind == "array":
            return ArrayType(self.type_at(depth + 1))
        at = self._tokens[self._next][2]
        if not isinstance(self.type_at(depth + 1), StringType):
            raise ValueError(f"the keys of a map in JSON are STRING, at character {at + 1} is another type")
        self.expect(",")
        return MapType(StringType(), self.type_at(depth + 1))

    def _decimal(self) -> DecimalType:
        if not self._skip("("):
            return DecimalType()
        precision, scale = self._number(), self._number() if self._skip(",") else 0
        self.expect(")")
        if not 1 <= precision <= _DIGITS_MAX or scale > precision:
            raise ValueError(
                f"DECIMAL({precision},{scale}): expected 1 to {_DIGITS_MAX} digits, not more of them after the point"
            )
        return DecimalType(precision, scale)

    def _number(self) -> int:
        word, _, at = self._take()
        if not re.fullmatch(r"[0-9]{1,3}", word):
            raise ValueError(f"expected a number of digits at character {at + 1}, found {word!r}")
        return int(word)

    def expect(self, sign: str, or_else: str | None = None) -> None:
        """Consume ``sign``; the error names ``or_else`` as an alternative."""
        word, quoted, at = self._take()
        if quoted or word != sign:
            allowed = " or ".join(repr(one) if one else "the end" for one in (sign, or_else) if one is not None)
            raise ValueError(f"expected {allowed} at character {at + 1}, found {word or 'the end'!r}")

    def _skip(self, sign: str) -> bool:
        found = self._peek() == sign
        self._next += found
        return found

    def _peek(self) -> str | None:
        word, quoted, _ = self._tokens[self._next]
        return None if quoted else word

    def _take(self) -> tuple[str, bool, int]:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token
