"""``/put``, ``/get``, ``/offset`` and ``/stats``: requests of MetaQ's protocol as parameters of a URL.

The id of a broker may follow the path, ``/get/0``: a load balancer in front of several brokers routes by it. The status
of an answer is MetaQ's code, the body its text, or the bytes of messages. Codes mean what they do in MetaQ's protocol:
301 has the offset to continue at in its body, and no ``Location``.

Source: docs/http.md, "The paths of MetaQ's server".
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.backends.metaq.relayed import Relayed
from metaq.client.relay import Relay
from metaq.errors import MetaqError
from metaq.model import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN
from metaq_console.cluster.metaq import MetaqSystem
from metaq_console.console import Console
from metaq_console.errors import RequestFailed, failure_of
from metaq_console.security.guard import check_site

GET_BYTES_MAX: Final = 8 << 20
"""Limit on bytes that are asked of a broker, whatever ``maxsize`` says."""
GROUP: Final = "http"
"""The group of requests that name none."""
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,19}")
_CHANGING_ITEMS: Final = frozenset({"reset"})

Handle = Callable[["JavaRequest"], Awaitable[Relayed]]


class JavaRequest:
    """A request with the relay that answers it. Parameters that are missing or wrong raise ``RequestFailed``."""

    def __init__(self, console: Console, relay: Relay, request: Request) -> None:
        self.console, self.relay, self.request = console, relay, request

    @property
    def broker(self) -> int | None:
        """The id after the path."""
        given = self.request.path_params.get("broker", "")
        return None if not given else _number("broker", given, 0, INT32_MAX)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a parameter; one word of a command line: no blanks, no line ends."""
        given = self.request.query_params.get(name) or default
        if not given:
            raise RequestFailed(400, "invalid_value", f"parameter {name}: is missing")
        if re.search(r"[\s\x00]", given):
            raise RequestFailed(
                400, "invalid_value", f"parameter {name}: {given[:80]!r}; expected a word without blanks"
            )
        return given

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """Return a parameter that is a number."""
        given = self.request.query_params.get(name, "").strip()
        if not given and default is not None:
            return default
        if not given:
            raise RequestFailed(400, "invalid_value", f"parameter {name}: is missing")
        return _number(name, given, least, most)

    async def ask(self, what: str, call: Callable[[], Relayed]) -> Relayed:
        """Ask the broker, within the deadline of a question."""
        return await self.console.cluster.ask(call, what)


async def _put(asked: JavaRequest) -> Relayed:
    if not asked.console.settings.write:
        raise RequestFailed(
            403, "read_only", "put: this server is read-only; start it with --write (broker: write=true in [http])"
        )
    topic, partition = asked.text("topic"), asked.number("partition", INT32_MIN, INT32_MAX)
    flag, checksum = asked.number("flag", INT32_MIN, INT32_MAX), asked.number("checksum", INT32_MIN, INT32_MAX, -1)
    length = asked.number("length", 0, INT32_MAX)
    body = await asked.request.body()
    if len(body) != length:
        raise RequestFailed(400, "invalid_value", f"parameter length: {length}; the body has {len(body)} bytes")
    broker = asked.broker
    return await asked.ask(f"put to {topic}", lambda: asked.relay.put(topic, partition, flag, body, checksum, broker))


async def _get(asked: JavaRequest) -> Relayed:
    topic, group = asked.text("topic"), asked.text("group", GROUP)
    partition, offset = asked.number("partition", INT32_MIN, INT32_MAX), asked.number("offset", INT64_MIN, INT64_MAX)
    size = min(asked.number("maxsize", INT32_MIN, INT32_MAX), GET_BYTES_MAX)
    broker = asked.broker
    return await asked.ask(f"get of {topic}", lambda: asked.relay.get(topic, group, partition, offset, size, broker))


async def _offset(asked: JavaRequest) -> Relayed:
    topic, group = asked.text("topic"), asked.text("group", GROUP)
    partition, offset = asked.number("partition", INT32_MIN, INT32_MAX), asked.number("offset", INT64_MIN, INT64_MAX)
    broker = asked.broker
    return await asked.ask(f"offset of {topic}", lambda: asked.relay.offset(topic, group, partition, offset, broker))


async def _stats(asked: JavaRequest) -> Relayed:
    item = asked.request.path_params.get("item", "")
    if re.search(r"[\s\x00]", item):
        raise RequestFailed(400, "invalid_value", f"item {item[:80]!r}: expected a word without blanks")
    if item in _CHANGING_ITEMS:
        check_site(asked.request.headers, asked.request.headers.get("host", ""))  # though it is a GET
        if not asked.console.settings.write:
            raise RequestFailed(403, "read_only", f"stats {item}: this server is read-only; start it with --write")
    broker = asked.number("broker", 0, INT32_MAX, -1)
    return await asked.ask("stats", lambda: asked.relay.stats(item, None if broker < 0 else broker))


_PATHS: Final[tuple[tuple[str, list[str], Handle], ...]] = (
    ("/put", ["POST", "PUT"], _put),
    ("/put/{broker}", ["POST", "PUT"], _put),
    ("/get", ["GET"], _get),
    ("/get/{broker}", ["GET"], _get),
    ("/offset", ["GET"], _offset),
    ("/offset/{broker}", ["GET"], _offset),
    ("/stats", ["GET"], _stats),
    ("/stats/{item}", ["GET"], _stats),
)
"""Rows: a path, its methods, and what answers it."""


def java_routes(console: Console) -> list[Route]:
    """Return the routes; none in front of a cluster of RocketMQ, whose brokers have no such requests."""
    system = console.cluster.system
    if not isinstance(system, MetaqSystem):
        return []
    return [Route(path, _endpoint(console, system, handle), methods=methods) for path, methods, handle in _PATHS]


def _endpoint(console: Console, system: MetaqSystem, handle: Handle) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            found = await handle(JavaRequest(console, system.relay, request))
        except (RequestFailed, MetaqError, ValueError, ClientDisconnect) as error:
            failure = failure_of(error)
            return Response(failure.body.message, failure.status, media_type="text/plain")
        kind = "application/octet-stream" if request.url.path.startswith("/get") and found.code == 200 else "text/plain"
        return Response(found.body, found.code, media_type=kind)

    return respond


def _number(name: str, given: str, least: int, most: int) -> int:
    if not _NUMBER.fullmatch(given) or not least <= int(given) <= most:
        raise RequestFailed(
            400, "invalid_value", f"parameter {name}: {given[:80]!r}; expected a number, {least}..{most}"
        )
    return int(given)
