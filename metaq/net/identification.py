"""Identifies the kind of server at an address, when it does not answer as expected.

A client that connects to a port of another protocol gets no answer, or its connection is closed. So each protocol is
tried on a separate connection, in about a second in total; the requests have no side effects.
"""

from __future__ import annotations

import json
import re
import struct
from contextlib import suppress
from typing import Final

from metaq.errors import ConnectionFailed, DeadlineExceeded
from metaq.model import Address
from metaq.net.transport import first_answer

METAQ: Final = "a MetaQ broker"
ROCKETMQ: Final = "a RocketMQ server"
HTTP: Final = "an HTTP server"
TLS: Final = "a server that requires TLS"

SILENT_S: Final = 1.0
"""Seconds without a byte, after which it is asked elsewhere whether another server has replaced this one, and after
which a server that has never answered is identified.
"""

PROBE_S: Final = 0.4
"""Timeout of the attempt with one protocol, in seconds."""

IDENTIFY_S: Final = 4 * 2 * PROBE_S
"""Longest time in seconds that ``identify`` takes: four connections, each with an answer."""

ACCEPTS_S: Final = 2 * PROBE_S
"""The same for ``accepts_tls``."""

_LINE: Final = b"version 0\r\n\r\n"
_HTTP_REQUEST: Final = b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_TLS_ALERT: Final = b"\x15\x03"
_TLS_HANDSHAKE: Final = b"\x16\x03"

_NO_BACKEND: Final = re.compile(rb"HTTP/\S+ 50[0234]\b")
"""How a proxy's answer begins that recognizes HTTP, while the server that it passes other protocols on to is away."""

NOT_FOR_HTTP: Final = "This port is for clients of "
"""How the bundled broker's answer to an HTTP request begins."""


def _route_request() -> bytes:
    fields = {"code": 105, "language": "PYTHON", "version": 407, "opaque": 0, "flag": 0}
    fields["extFields"] = {"topic": "TBW102"}
    header = json.dumps(fields).encode()
    return struct.pack(">ii", 4 + len(header), len(header)) + header


def identify(address: Address) -> str | None:
    """Return the kind of server at ``address``: one of the constants above, or ``None``. Takes ``IDENTIFY_S``
    at most.

    A server that is only slow is not identified: its RocketMQ port may accept TLS as well, and ports of the bundled
    broker refuse TLS and HTTP in these protocols.
    """
    is_silent = False
    for request in (_LINE, _route_request()):
        try:
            if (found := _kind_for(address, request)) is not None:
                return found
        except DeadlineExceeded:
            is_silent = True  # a server that requires TLS closes the connection instead
    if not is_silent and accepts_tls(address):
        try:  # again: it may have started meanwhile, and accept requests without TLS as well
            return _kind_for(address, _route_request()) or TLS
        except DeadlineExceeded:
            return None
    with suppress(ConnectionFailed, DeadlineExceeded):
        answer = first_answer(address, _HTTP_REQUEST, PROBE_S)
        is_http = answer.startswith(b"HTTP/") and not _NO_BACKEND.match(answer)
        if is_http and NOT_FOR_HTTP.encode() not in answer:
            return HTTP
    return None


def accepts_tls(address: Address) -> bool:
    """Return whether a server begins a TLS handshake; false if it does not answer."""
    with suppress(ConnectionFailed, DeadlineExceeded):
        return first_answer(address, _client_hello(), PROBE_S).startswith(_TLS_HANDSHAKE)
    return False


def _kind_for(address: Address, request: bytes) -> str | None:
    """Return the kind of a server by its answer to a request without TLS; ``None`` if that does not show it.

    Raises:
        DeadlineExceeded: It does not answer.
    """
    try:
        return _kind_of(first_answer(address, request, PROBE_S))
    except ConnectionFailed:
        return None


def _kind_of(answer: bytes) -> str | None:
    """Return what answers a request without TLS so."""
    if answer.startswith(b"result "):
        return METAQ
    if answer[:1] == b"\0" and b'"code":' in answer:
        return ROCKETMQ
    return TLS if answer.startswith(_TLS_ALERT) else None


def _client_hello() -> bytes:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    hello, unread = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(unread, hello).do_handshake()
    return hello.read()
