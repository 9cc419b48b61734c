"""Conversion between typed headers and a command's ``ext``.

A header is a frozen dataclass, and its declaration is the only table of its fields: the attribute's name determines the
name on the wire (``queue_id`` is ``queueId``) unless a ``Wire`` in the annotation has another one, the annotation its
type, and a default makes it optional. A ``Wire`` may have a second name, the single letter that sends of version 2 use.

Real clients write numbers and booleans in various forms, and send unknown fields. Values that Java accepts are accepted
here; a value that Java would turn into null raises an error that names the field.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Final, Self, get_args, get_type_hints

from metaq.errors import FieldError
from metaq.protocols.remoting.codes import name_of
from metaq.protocols.remoting.wire_types import Wire, bits_of, camel_case, names_of

_NUMBER: Final = re.compile("[+-]?[0-9]{1,19}")
_DIGITS: Final = {32: 9, 64: 18}
"""A number with at most so many digits always fits so many bits."""


def _read_number(bits: int) -> Callable[[str], int]:
    limit = 1 << bits - 1

    def read(text: str) -> int:
        if not _NUMBER.fullmatch(text) or not -limit <= (number := int(text)) < limit:
            raise ValueError
        return number

    return read


def _read_boolean(text: str) -> bool:
    return text.lower() == "true"  # as Java does: a C++ client sends "0" for false


def _write_boolean(value: bool) -> str:
    return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class FieldType:
    """A type of field: its name in tables, the allowed values, a parser and a formatter.

    ``digits``: a value of at most so many decimal digits is a number that fits; 0 for a boolean, -1 for a text.
    """

    name: str
    allowed: str
    read: Callable[[str], Any]
    write: Callable[[Any], str]
    digits: int


_TEXT: Final = FieldType("text", "a text", str, str, -1)
_BOOLEAN: Final = FieldType("boolean", "true or false", _read_boolean, _write_boolean, 0)
_NUMBERS: Final = {
    bits: FieldType(f"i{bits}", f"a number of {bits} bits", _read_number(bits), str, digits)
    for bits, digits in _DIGITS.items()
}


@dataclass(frozen=True, slots=True)
class HeaderField:
    attribute: str
    name: str
    short: str
    type: FieldType
    required: bool


_KNOWN: Final[dict[type[Header], tuple[HeaderField, ...]]] = {}

Read = tuple[str, str, int, HeaderField]


def fields_of(header: type[Header]) -> tuple[HeaderField, ...]:
    """Return the fields of ``header`` in the order of their declaration."""
    found = _KNOWN.get(header)
    if found is None:
        hints = get_type_hints(header, include_extras=True)
        declared = dataclasses.fields(header)  # type: ignore[arg-type]
        found = tuple(_field(each.name, hints[each.name], each.default is dataclasses.MISSING) for each in declared)
        _KNOWN[header] = found
    return found


@cache
def _reads_of(header: type[Header], short: bool) -> list[Read]:
    """Return how the fields of ``header`` are read: attribute, name, ``digits`` of the type, field."""
    return [
        (each.attribute, each.short if short else each.name, each.type.digits, each) for each in fields_of(header)
    ]


def _field(attribute: str, hint: Any, required: bool) -> HeaderField:
    names = names_of(hint)
    return HeaderField(attribute, names.name or camel_case(attribute), names.short, _type_of(hint), required)


def _type_of(hint: Any) -> FieldType:
    if bits := bits_of(hint):
        return _NUMBERS[bits]
    if args := [each for each in get_args(hint) if each is not type(None) and not isinstance(each, Wire)]:
        return _type_of(args[0])
    return _BOOLEAN if hint is bool else _TEXT


class Header:
    """Base of requests and responses. Subclasses are frozen dataclasses."""

    __slots__ = ()
    CODE: ClassVar[int]
    """The code of the request, or of the request that this answers."""
    SHORT_CODES: ClassVar[tuple[int, ...]] = ()
    """Codes whose fields have short names."""

    def ext(self, code: int | None = None) -> dict[str, str]:
        """Return the fields that are not ``None`` as ``ext`` of a command with ``code`` (``None``: ``CODE``)."""
        short = (self.CODE if code is None else code) in self.SHORT_CODES
        return {
            field.short if short else field.name: field.type.write(value)
            for field in fields_of(type(self))
            if (value := getattr(self, field.attribute)) is not None
        }

    @classmethod
    def from_ext(cls, ext: Mapping[str, str], code: int | None = None) -> Self:
        """Parse ``ext`` of a command with ``code`` (``None``: ``CODE``). Unknown fields are ignored.

        Raises:
            FieldError: A field is missing or of another type.
        """
        code = cls.CODE if code is None else code
        values: dict[str, Any] = {}
        for attribute, name, digits, field in _reads_of(cls, code in cls.SHORT_CODES):  # type: ignore[arg-type]
            text = ext.get(name)
            if digits < 0 and text is not None:
                values[attribute] = text
            elif not text:  # the binary header writes null as an empty text
                if field.required:
                    raise FieldError(cls.command_name(code), name, text, field.type.allowed)
            elif len(text) <= digits and text.isdecimal() and text.isascii():
                values[attribute] = int(text)
            else:
                try:
                    values[attribute] = field.type.read(text)
                except ValueError:
                    raise FieldError(cls.command_name(code), name, text, field.type.allowed) from None
        return cls(**values)

    @classmethod
    def command_name(cls, code: int) -> str:
        """Return the name of the command in errors."""
        return name_of(code)


class Right(Enum):
    """What an account needs for a request: a permission on the topic or the group that its fields name."""

    OPEN = "nothing"
    ACCOUNT = "any account"
    ADMIN = "an administrator's account"
    SEND = "PUB on the topic"
    READ = "SUB on the topic"
    SEND_OR_READ = "PUB or SUB on the topic"
    GROUP = "SUB on the group"
    READ_AS_GROUP = "SUB on topic and group"
    IN_BODY = "SUB on the groups and topics in the body"


class Request(Header):
    """The header of a request, and with its class attributes the row of the request.

    A request without fields may have a body.
    """

    __slots__ = ()
    OTHER_CODES: ClassVar[tuple[int, ...]] = ()
    """Further codes of requests with these fields."""
    RIGHT: ClassVar[Right] = Right.ACCOUNT
    REPEATABLE: ClassVar[bool] = False
    """Whether a client may send it again after a lost connection: the second one changes nothing more."""
    BODY: ClassVar[str] = ""
    """The request's body: the name of a class in ``bodies``, or a few words."""
    ANSWER_BODY: ClassVar[str] = ""
    """The same of the answer. After the name of a class, a comma and how its JSON differs."""


class Response(Header):
    """The header of a response; ``CODE`` is the request's."""

    __slots__ = ()

    @classmethod
    def command_name(cls, code: int) -> str:
        """Return the name of the command in errors."""
        return f"the answer to {name_of(code)}"
