"""Typed headers: a frozen dataclass for each request, and for each response with fields.

::

    asked = PullMessage(consumer_group="g", topic="T", queue_id=0, ...)
    command = to_request(asked, opaque=7, broker_name="broker-a")
    parse_request(command) == asked
    PullMessageResponse.from_ext(answer.ext).next_begin_offset

``fields`` converts declarations into the names and types on the wire. A class is the only row of its request: its code,
who may send it, and its bodies are class attributes. ``make reference`` writes them into docs/remoting-protocol.md.
"""

from __future__ import annotations

from typing import Final

from metaq.protocols.remoting.command import Codec, RemotingCommand, request
from metaq.protocols.remoting.headers import administration, clients, offsets, pulls, routes, sends, transactions
from metaq.protocols.remoting.headers.fields import Header, Request, Response

_MODULES: Final = (sends, pulls, offsets, clients, transactions, routes, administration)


def _declared(kind: type[Header]) -> list[type[Header]]:
    return [
        value
        for module in _MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, kind) and value.__module__ == module.__name__
    ]


REQUESTS: Final[dict[int, type[Request]]] = {
    code: each for each in _declared(Request) if issubclass(each, Request) for code in (each.CODE, *each.OTHER_CODES)
}
"""Code -> class of its request."""

REPEATABLE_CODES: Final = frozenset(code for code, each in REQUESTS.items() if each.REPEATABLE)
"""Requests that may be sent again after a lost connection."""

JSON_BODIES: Final = frozenset(code for code, each in REQUESTS.items() if each.BODY.isidentifier())
"""Requests with a JSON body. A registration (103) may have one, too, and has its own limits."""

RESPONSES: Final[dict[int, type[Response]]] = {
    each.CODE: each for each in _declared(Response) if issubclass(each, Response)
}
"""Code -> class of its response, for responses with fields."""


def to_request(
    header: Request,
    body: bytes = b"",
    *,
    code: int | None = None,
    opaque: int = 0,
    oneway: bool = False,
    broker_name: str | None = None,
    codec: Codec = Codec.JSON,
) -> RemotingCommand:
    """Return the request with this header; ``code`` is one of its class, ``None`` = the usual one.

    Set ``broker_name`` in every request to a broker: proxies refuse requests without it.
    """
    code = header.CODE if code is None else code
    ext = header.ext(code)
    if broker_name is not None:
        ext["n" if code in header.SHORT_CODES else "bname"] = broker_name
    return request(code, ext, body, opaque=opaque, oneway=oneway, codec=codec)


def parse_request(command: RemotingCommand) -> Request | None:
    """Return the typed header of ``command``, ``None`` if its code has no class here.

    Raises:
        FieldError: A field is missing or has another type.
    """
    header = REQUESTS.get(command.code)
    return None if header is None else header.from_ext(command.ext, command.code)
