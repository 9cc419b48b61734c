"""Checks of every request, as ASGI middleware, and the headers of every answer.

Order: the host, the site of origin, the token, the size. A request from a page of another site is recognised by what
browsers send with it, ``Origin`` and ``Sec-Fetch-Site``: it may not change anything. Answers forbid other sites to
embed, frame or read them, and their own pages to run any script that is not a file of this server.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse, Response

from metaq_console.api.operations import BODY_BYTES_MAX, failure_answer
from metaq_console.api.table import OPERATIONS
from metaq_console.errors import RequestFailed
from metaq_console.security.hosts import AllowedHosts
from metaq_console.security.tokens import Token
from metaq_console.settings import ConsoleSettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send forms with "Origin: null"
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""Headers that an answer has unless it sets its own."""

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PREFIXES: Final = ("/login", "/static/")
"""Paths that need no token: a browser has to be able to show where it is entered."""
PUT_BYTES_MAX: Final = 8 << 20
"""Longest message that is put by a path of MetaQ's own server."""
_LONGER: Final = [
    (re.compile(re.sub(r"\{\w+\}", "[^/]+", row.path)), row.body_bytes_max)
    for row in OPERATIONS
    if row.body_bytes_max > BODY_BYTES_MAX
]
"""Paths of operations whose bodies may be longer, with how long."""


def guarded(settings: ConsoleSettings) -> list[Middleware]:
    """Return the middleware for ``settings``."""
    return [Middleware(Guard, settings=settings)]


class Guard:
    """The middleware."""

    def __init__(self, app: App, settings: ConsoleSettings) -> None:
        self._app = app
        self._hosts = AllowedHosts((*settings.allowed_hosts, settings.host))
        self._token = None if settings.token is None else Token(settings.token)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        with_headers = _with_headers(send)
        try:
            self._check(scope, headers)
            limit = _limit(scope)
            _check_length(headers, limit)
        except RequestFailed as failure:
            answer = failure_answer(failure)
            if failure.status == 401:
                answer = _to_login(scope, headers) or answer
                answer.headers["WWW-Authenticate"] = 'Bearer realm="metaq"'
            await answer(scope, receive, with_headers)
            return
        await self._app(scope, _CountedBody(receive, limit), with_headers)

    def _check(self, scope: MutableMapping[str, Any], headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._hosts.allows(host):
            raise RequestFailed(
                421,
                "wrong_host",
                f"Host {host[:80]!r}: allowed are addresses, localhost, this machine's name and those of --allow-host",
            )
        if scope["method"] not in SAFE:
            check_site(headers, host)
        if self._token is None or scope["path"].startswith(OPEN_PREFIXES):
            return
        if not self._token.is_in(headers):
            raise RequestFailed(
                401, "unauthorized", "the token is missing or wrong; send it as Authorization: Bearer TOKEN"
            )


def _to_login(scope: MutableMapping[str, Any], headers: Headers) -> Response | None:
    """Return the way to the page where a browser's visitor enters the token; ``None`` for a program."""
    if scope["method"] != "GET" or "text/html" not in headers.get("accept", ""):
        return None
    path, query = scope["path"], scope.get("query_string", b"").decode("latin-1")
    return RedirectResponse(f"/login?{urlencode({'back': f'{path}?{query}' if query else path})}", 303)


def check_site(headers: Headers, host: str) -> None:
    """Check that a request that changes something comes from a page of this server, or from no page.

    Raises:
        RequestFailed: It comes from another site (403).
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_other = site is not None and site not in ("same-origin", "none")
    if origin is not None and _host_of(origin) != host.lower():
        is_other = True  # also "null", from a page without an origin
    if is_other:
        raise RequestFailed(
            403, "other_site", "the request comes from a page of another site; allowed are pages of this server"
        )


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # such as http://[::1
        return ""


def _limit(scope: MutableMapping[str, Any]) -> int:
    path: str = scope["path"]
    if path.startswith("/put"):
        return PUT_BYTES_MAX
    return next((most for pattern, most in _LONGER if pattern.fullmatch(path)), BODY_BYTES_MAX)


def _check_length(headers: Headers, limit: int) -> None:
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limit:
        raise _too_long(limit)


def _too_long(limit: int) -> RequestFailed:
    return RequestFailed(413, "body_too_long", f"the body has more than {limit} bytes, which is the limit here")


class _CountedBody:
    """Receives a body, and raises ``RequestFailed`` at the limit: a body may come without a length."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit, self._count = receive, limit, 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._count += len(message.get("body", b""))
        if self._count > self._limit:
            raise _too_long(self._limit)
        return message


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return with_headers
