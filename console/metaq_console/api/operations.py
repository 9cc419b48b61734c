"""Operations of the API: a row each, and how a request becomes a call of its handler."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from metaq_console.api.schemas import Schema, read_as, to_json, wrong
from metaq_console.console import Console
from metaq_console.errors import RequestFailed

Method = Literal["GET", "POST", "DELETE"]
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
BODY_BYTES_MAX: Final = 1 << 20
"""Longest body, unless an operation allows more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiParameter:
    """A parameter in the path or the query. ``read`` parses its text and raises ``ValueError`` with what is allowed."""

    name: str
    text: str
    schema: Schema
    read: Callable[[str], object]
    where: Literal["path", "query"] = "query"
    required: bool = False
    default: object = None
    many: bool = False
    """Whether it may be repeated; the value is a tuple then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """A request to an operation: its parameters by name, and its body, if the operation has one."""

    console: Console
    request: Request
    values: Mapping[str, Any]
    body: Any

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


Handler = Callable[[ApiCall], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOperation:
    """One row. ``answer`` is the class of what ``handle`` returns; ``None``: it returns a response, of type
    ``media``. ``changes``: needs ``--write``, unless the body says that it is a rehearsal. ``of_all``: its answer is of
    all brokers, and there is none while one of them does not answer.
    """

    method: Method
    path: str
    name: str
    text: str
    handle: Handler
    parameters: tuple[ApiParameter, ...] = ()
    body: Any = None
    body_bytes_max: int = BODY_BYTES_MAX
    answer: Any = None
    media: str = "application/json"
    status: int = 200
    changes: bool = False
    of_all: bool = False
    statuses: Mapping[int, str] = field(default_factory=dict)
    """Statuses of failures that only this operation has, with a sentence each."""


class JsonAnswer(Response):
    """JSON in ASCII: what is not ASCII is escaped, so that no payload changes how a terminal or a page shows it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def failure_answer(failure: RequestFailed) -> Response:
    """Return the one form of all failures."""
    return JsonAnswer({"error": to_json(failure.body)}, failure.status)


# ---- parameters


def text(name: str, about: str, *, least: int = 0, most: int = 1000, **options: Any) -> ApiParameter:
    """Return a parameter that is a text of ``least`` to ``most`` characters."""

    def read(given: str) -> str:
        if not least <= len(given) <= most or "\x00" in given:
            raise ValueError(f"a text of {least}..{most} characters without NUL")
        return given

    schema = {"type": "string", "minLength": least, "maxLength": most, "pattern": r"^[^\x00]*$"}
    return ApiParameter(name=name, text=about, schema=schema, read=read, **options)


def whole(name: str, about: str, least: int, most: int, **options: Any) -> ApiParameter:
    """Return a parameter that is a whole number."""

    def read(given: str) -> int:
        if not _INTEGER.fullmatch(given) or not least <= int(given) <= most:
            raise ValueError(f"a whole number, {least}..{most}")
        return int(given)

    schema = {"type": "integer", "minimum": least, "maximum": most}
    default = options.get("default")
    if default is not None:
        schema["default"] = default
    return ApiParameter(name=name, text=about, schema=schema, read=read, **options)


def word(name: str, about: str, words: Sequence[str], **options: Any) -> ApiParameter:
    """Return a parameter that is one of some words."""

    def read(given: str) -> str:
        if given not in words:
            raise ValueError(", ".join(words))
        return given

    schema: Schema = {"type": "string", "enum": list(words)}
    if options.get("default") is not None:
        schema["default"] = options["default"]
    return ApiParameter(name=name, text=about, schema=schema, read=read, **options)


def flag(name: str, about: str) -> ApiParameter:
    """Return a parameter that is true or false, false by default."""

    def read(given: str) -> bool:
        if given not in ("true", "false"):
            raise ValueError("true or false")
        return given == "true"

    return ApiParameter(name=name, text=about, schema={"type": "boolean", "default": False}, read=read, default=False)


# ---- requests


async def answer(operation: ApiOperation, console: Console, request: Request) -> Response:
    """Check a request, call the operation's handler, and return its answer.

    Raises:
        RequestFailed: The request has a wrong form, or the handler failed.
    """
    values = _values(operation, request)
    body = await _body(operation, request)
    if operation.changes and not console.settings.write and not getattr(body, "dry_run", False):
        raise RequestFailed(
            403,
            "read_only",
            f"{operation.name}: this server is read-only; start it with --write (broker: write=true in [http])",
        )
    if operation.of_all:
        console.cluster.require_all()
    found = await operation.handle(ApiCall(console=console, request=request, values=values, body=body))
    if operation.of_all:  # a broker may have fallen silent meanwhile
        console.cluster.require_all()
    return found if isinstance(found, Response) else JsonAnswer(to_json(found), operation.status)


def _values(operation: ApiOperation, request: Request) -> dict[str, Any]:
    query = request.query_params
    known = {one.name for one in operation.parameters if one.where == "query"}
    if unknown := sorted(set(query) - known):
        raise wrong(f"parameter {unknown[0][:80]!r}", "unknown", ", ".join(sorted(known)) or "none")
    return {one.name: _value(one, request) for one in operation.parameters}


def _value(parameter: ApiParameter, request: Request) -> object:
    name = parameter.name
    if parameter.where == "path":
        return _parsed(parameter, request.path_params[name])
    given = request.query_params.getlist(name)
    if not given and parameter.required:
        raise RequestFailed(400, "invalid_value", f"parameter {name}: is missing")
    if parameter.many:
        return tuple(_parsed(parameter, one) for one in given) or parameter.default
    if len(given) > 1:
        raise wrong(f"parameter {name}", f"given {len(given)} times", "once")
    return _parsed(parameter, given[0]) if given else parameter.default


def _parsed(parameter: ApiParameter, given: str) -> object:
    try:
        return parameter.read(given)
    except ValueError as error:
        raise wrong(f"parameter {parameter.name}", given, str(error)) from None


async def _body(operation: ApiOperation, request: Request) -> object:
    if operation.body is None:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestFailed(415, "wrong_content_type", f"Content-Type {kind[:80]!r}: expected application/json")
    try:
        given = json.loads(await request.body(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestFailed(400, "invalid_json", f"the body is not JSON: {str(error)[:200]}") from None
    return read_as(operation.body, given, "body")


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")
