"""Conversion between dataclasses and JSON bodies.

As with headers, the declaration is the table of the fields: names, types, and by a default whether a field is optional.
A default also replaces null. Parsing accepts what real clients write: numbers as texts, enums as ordinals, unknown
fields. Output is as Java writes it: names in order, nothing for ``None``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from enum import Enum
from types import UnionType
from typing import Any, ClassVar, Final, Self, Union, get_args, get_origin, get_type_hints

from metaq.errors import FieldError
from metaq.model import Buffer
from metaq.protocols.remoting.bodies.json_text import load_json
from metaq.protocols.remoting.json_header import quoted
from metaq.protocols.remoting.wire_types import Wire, bits_of, camel_case, names_of

_Reader = Callable[[Any], Any]


class _Wrong(Exception):
    """A value is not valid; ``path`` grows as the error propagates."""

    def __init__(self, value: Any, allowed: str, path: str = "") -> None:
        self.value, self.allowed, self.path = value, allowed, path

    def inside(self, step: str) -> _Wrong:
        """Return the error for the enclosing value."""
        return _Wrong(self.value, self.allowed, step + self.path)


class JsonBody:
    """Base of the bodies. Subclasses are frozen dataclasses."""

    __slots__ = ()
    NAME: ClassVar[str] = ""
    """The body's name in errors; by default its class name."""

    @classmethod
    def from_json(cls, data: Buffer, bare_keys_bytes_max: int | None = None) -> Self:
        """Parse ``data``; see ``load_json``.

        Raises:
            FieldError: It is not JSON, or a field is missing or has another type.
        """
        return cls.from_value(load_json(data, cls._called(), bare_keys_bytes_max))

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Convert parsed JSON.

        Raises:
            FieldError: A field is missing or of another type.
        """
        try:
            result: Self = _reader(cls)(value)
        except _Wrong as wrong:
            raise FieldError(cls._called(), wrong.path.lstrip(".") or "body", wrong.value, wrong.allowed) from None
        return result

    def to_json(self, bare_number_keys: bool = False) -> bytes:
        """Return the body as JSON. ``bare_number_keys``: write number keys without quotes, as Java does, which is not
        valid JSON.
        """
        return _written(self, bare_number_keys).encode("utf-8", "replace")

    @classmethod
    def _called(cls) -> str:
        return cls.NAME or cls.__name__


_READERS: Final[dict[Any, _Reader]] = {}


def _reader(hint: Any) -> _Reader:
    found = _READERS.get(hint)
    if found is None:
        found = _READERS[hint] = _make_reader(hint)
    return found


def _make_reader(hint: Any) -> _Reader:
    if bits := bits_of(hint):
        return _number_reader(bits)
    origin, args = get_origin(hint), get_args(hint)
    if hasattr(hint, "__metadata__"):
        return _reader(args[0])
    if origin in (UnionType, Union):
        return _reader(next(each for each in args if each is not type(None)))
    if origin is tuple:
        return _list_reader(_reader(args[0]))
    if origin is dict:
        return _map_reader(args[0], _reader(args[1]))
    if isinstance(hint, type) and issubclass(hint, JsonBody):
        return _object_reader(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_reader(hint)
    return {str: _read_text, bool: _read_boolean, float: _read_float}.get(hint, _read_anything)


def _read_anything(value: Any) -> Any:
    return value


def _read_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong(value, "a text")
    return str(value)


def _read_boolean(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() == "true"
    if not isinstance(value, int):
        raise _Wrong(value, "true or false")
    return bool(value)


def _read_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise _Wrong(value, "a number") from None


def _number_reader(bits: int) -> _Reader:
    limit = 1 << bits - 1

    def read(value: Any) -> int:
        if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.lstrip("+-").isdigit():
            value = int(value) if value.count("-") + value.count("+") <= 1 else None
        if isinstance(value, bool) or not isinstance(value, int) or not -limit <= value < limit:
            raise _Wrong(value, f"a number of {bits} bits")
        return value

    return read


def _enum_reader(hint: type[Enum]) -> _Reader:
    members = list(hint)
    allowed = "one of " + ", ".join(each.name for each in members)

    def read(value: Any) -> Enum:
        if isinstance(value, str) and value in hint.__members__:
            return hint[value]
        if isinstance(value, int) and 0 <= value < len(members):
            return members[value]
        raise _Wrong(value, allowed)

    return read


def _list_reader(item: _Reader) -> _Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _Wrong(value, "a list")
        items = []
        for index, each in enumerate(value):
            try:
                items.append(item(each))
            except _Wrong as wrong:
                raise wrong.inside(f"[{index}]") from None
        return tuple(items)

    return read


def _map_reader(key_hint: Any, item: _Reader) -> _Reader:
    is_object = isinstance(key_hint, type) and issubclass(key_hint, JsonBody)
    key = _reader(key_hint)

    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _Wrong(value, "an object")
        items = {}
        for name, each in value.items():
            try:
                items[key(_parsed(name) if is_object else name)] = item(each)
            except _Wrong as wrong:
                raise wrong.inside(f"[{name[:80]}]") from None
        return items

    return read


def _parsed(name: str) -> Any:
    try:
        return json.loads(name)
    except (ValueError, RecursionError):
        raise _Wrong(name, "an object as the key") from None


_Row = tuple[str, str, _Reader, bool]
_ROWS: Final[dict[type[JsonBody], tuple[_Row, ...]]] = {}


def _rows(body: type[JsonBody]) -> tuple[_Row, ...]:
    """Name on the wire, attribute, reader, and whether it is required; in the order in which Java writes them."""
    found = _ROWS.get(body)
    if found is None:
        hints = get_type_hints(body, include_extras=True)
        missing = dataclasses.MISSING
        found = _ROWS[body] = tuple(
            sorted(
                (
                    names_of(hints[each.name]).name or camel_case(each.name),
                    each.name,
                    _reader(hints[each.name]),
                    each.default is missing and each.default_factory is missing,
                )
                for each in dataclasses.fields(body)  # type: ignore[arg-type]
            )
        )
    return found


def _object_reader(body: type[JsonBody]) -> _Reader:
    def read(value: Any) -> JsonBody:
        if not isinstance(value, dict):
            raise _Wrong(value, "an object")
        attributes = {}
        for name, attribute, reader, required in _rows(body):
            each = value.get(name)
            if each is None:
                if required:
                    raise _Wrong(None, "there", f".{name}")
                continue
            try:
                attributes[attribute] = reader(each)
            except _Wrong as wrong:
                raise wrong.inside(f".{name}") from None
        return body(**attributes)

    return read


def _written(value: Any, bare: bool) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return f'"{value.name}"'
    if isinstance(value, JsonBody):
        rows = ((name, getattr(value, attribute)) for name, attribute, _, _ in _rows(type(value)))
        return "{" + ",".join(f'"{name}":{_written(each, bare)}' for name, each in rows if each is not None) + "}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(key, bare)}:{_written(each, bare)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple | frozenset | set):
        return "[" + ",".join(_written(each, bare) for each in value) + "]"
    return json.dumps(value)


def _key(key: Any, bare: bool) -> str:
    if isinstance(key, JsonBody) or (isinstance(key, int) and bare):
        return _written(key, bare)
    return quoted(str(key))


__all__ = ["JsonBody", "Wire"]
