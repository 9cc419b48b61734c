"""JSON and dataclasses: the schema of a class, a checked object from JSON, and JSON from an object.

A class is the only description of its JSON: fields are properties of the same names, fields with a default may be
absent, and a text below a field is its description. ``Annotated`` narrows a field: ``Annotated[int, Range(1, 500)]``.
Unknown properties are refused.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from metaq_console.errors import RequestFailed

Schema = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """Allowed numbers, both ends included."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Length:
    """Allowed numbers of characters, or of items."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Form:
    """A form of OpenAPI, such as ``byte`` for Base64."""

    name: str


def schema_name(kind: Any) -> str:
    """Return the name of a dataclass in the document; ``Page[TopicRow]`` is ``TopicRowPage``."""
    origin = get_origin(kind)
    if origin is None:
        return str(kind.__name__)
    return "".join(schema_name(one) for one in get_args(kind)) + str(origin.__name__)


def schema_of(kind: Any, known: dict[str, Schema]) -> Schema:
    """Return the schema of a type; schemas of dataclasses are added to ``known``, and referred to."""
    if kind is Any:
        return {}
    if kind is None or kind is type(None):
        return {"type": "null"}
    origin = get_origin(kind)
    if origin is Annotated:
        return _narrowed(schema_of(get_args(kind)[0], known), get_args(kind)[1:])
    if origin is Literal:
        return {"enum": list(get_args(kind))}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(one, known) for one in get_args(kind)]}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": schema_of(get_args(kind)[0], known)}
    if origin in (dict, AnyMapping):
        return {"type": "object", "additionalProperties": schema_of(get_args(kind)[1], known)}
    simple = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}
    if kind in simple:
        return {"type": simple[kind]}
    name = schema_name(kind)
    if name not in known:
        known[name] = {}
        known[name] = _object_schema(kind, known)
    return {"$ref": f"#/components/schemas/{name}"}


def _narrowed(schema: Schema, limits: Sequence[object]) -> Schema:
    for limit in limits:
        match limit:
            case Range(least, most):
                schema |= {"minimum": least, "maximum": most}
            case Length(least, most):
                what = "Items" if schema.get("type") == "array" else "Length"
                schema |= {f"min{what}": least, f"max{what}": most}
            case Form(name):
                schema |= {"format": name}
    return schema


def _object_schema(kind: Any, known: dict[str, Schema]) -> Schema:
    properties = {}
    for name, (hint, _) in fields_of(kind).items():
        schema = schema_of(hint, known)
        text = field_texts(get_origin(kind) or kind).get(name)
        properties[name] = (
            schema
            if text is None
            else {"allOf": [schema], "description": text}
            if "$ref" in schema
            else {**schema, "description": text}
        )
    required = [name for name, (_, has_default) in fields_of(kind).items() if not has_default or _is_answer(kind)]
    text = inspect.getdoc(get_origin(kind) or kind) or ""
    return {
        "type": "object",
        "description": text.partition("\n\nRaises:")[0],
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _is_answer(kind: Any) -> bool:
    """Answers always have all fields; only bodies of requests may leave some out."""
    return not schema_name(kind).endswith("Body") or schema_name(kind) == "ErrorBody"


@cache
def fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the fields of a dataclass: name -> (type, whether it has a default). Type variables are replaced."""
    origin = get_origin(kind) or kind
    replaced = dict(zip(getattr(origin, "__parameters__", ()), get_args(kind), strict=True))
    hints = typing.get_type_hints(origin, include_extras=True)
    return {
        one.name: (
            _replace(hints[one.name], replaced),
            one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING,
        )
        for one in dataclasses.fields(origin)
    }


def _replace(hint: Any, replaced: Mapping[Any, Any]) -> Any:
    if hint in replaced:
        return replaced[hint]
    if get_origin(hint) is tuple and replaced:
        return tuple[tuple(_replace(one, replaced) for one in get_args(hint))]  # type: ignore[misc]
    return hint


@cache
def field_texts(kind: Any) -> dict[str, str]:
    """Return the texts that stand below the fields of a class."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError):  # a class without a source file
        return {}
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                found[name] = " ".join(doc.split())
    return found


def read_as(kind: Any, value: object, where: str) -> Any:
    """Return ``value``, which was JSON, as a type.

    Raises:
        RequestFailed: It has another form; the sentence names the field, and what is allowed.
    """
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *limits = get_args(kind)
        return _within(read_as(inner, value, where), limits, where)
    if origin is Literal:
        return _one_of(get_args(kind), value, where)
    if origin in (typing.Union, types.UnionType):
        return _first_of(get_args(kind), value, where)
    if origin in (tuple, list, Sequence):
        if not isinstance(value, list):
            raise wrong(where, value, "a list")
        inner = get_args(kind)[0]
        return tuple(read_as(inner, one, f"{where}[{number}]") for number, one in enumerate(value))
    if origin in (dict, AnyMapping):
        if not isinstance(value, dict):
            raise wrong(where, value, "an object")
        inner = get_args(kind)[1]
        return {name: read_as(inner, one, f"{where}.{name}") for name, one in value.items()}
    if dataclasses.is_dataclass(kind):
        return _read_object(kind, value, where)
    return _simple(kind, value, where)


def _simple(kind: Any, value: object, where: str) -> object:
    if kind is type(None) and value is None:
        return None
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # JSON Schema has one kind of numbers: 1.0 is an integer
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is dict and isinstance(value, dict):
        return value
    if kind is str and isinstance(value, str):
        _require_characters(value, where)
        return value
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
    raise wrong(where, value, names.get(kind, "an object"))


def _require_characters(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise wrong(where, text, "a text of whole characters, without halves of surrogate pairs") from None


def _one_of(allowed: Sequence[object], value: object, where: str) -> object:
    if isinstance(value, bool) or value not in allowed:
        raise wrong(where, value, ", ".join(map(str, allowed)))
    return value


def _first_of(kinds: Sequence[Any], value: object, where: str) -> object:
    failure: RequestFailed | None = None
    for kind in kinds:
        if kind is type(None) and value is not None:
            continue
        try:
            return read_as(kind, value, where)
        except RequestFailed as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _within(value: Any, limits: Sequence[object], where: str) -> Any:
    for limit in limits:
        match limit:
            case Range(least, most) if not least <= value <= most:
                raise wrong(where, value, f"{least:g}..{most:g}")
            case Length(least, most) if not least <= len(value) <= most:
                what = "characters" if isinstance(value, str) else "items"
                raise wrong(where, f"of {len(value)} {what}", f"{least}..{most} {what}")
    return value


def _read_object(kind: Any, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise wrong(where, value, "an object")
    fields = fields_of(kind)
    if unknown := sorted(set(value) - set(fields)):
        raise wrong(f"{where}.{unknown[0][:80]}", "an unknown field", ", ".join(fields))
    missing = [name for name, (_, has_default) in fields.items() if name not in value and not has_default]
    if missing:
        raise RequestFailed(400, "invalid_value", f"{where}.{missing[0]}: is missing")
    given = {name: read_as(fields[name][0], one, f"{where}.{name}") for name, one in value.items()}
    try:
        return kind(**given)
    except ValueError as error:
        raise RequestFailed(409, "contradiction", f"{where}: {error}") from None


def wrong(where: str, value: object, allowed: str) -> RequestFailed:
    """Return the failure for a value that has a wrong form."""
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return RequestFailed(400, "invalid_value", f"{where}: {shown[:80]}; expected {allowed}")


def to_json(value: Any) -> Any:
    """Return an object as JSON's types: dataclasses become objects, tuples lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_json(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return value
