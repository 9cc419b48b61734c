"""Detects clients of another protocol by their first bytes; they get an answer in their protocol if it has a short one.

::

    first bytes             client           answer
    16 03                   TLS              an alert: handshake failure
    GET /, POST /, ...      HTTP             400, with a sentence
    00                      RocketMQ         none: the connection is closed
    version, put, get ...   MetaQ            none: the connection is closed

All of these differ: a frame of RocketMQ begins with its length, which is below 16 MiB here.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from metaq.net.identification import NOT_FOR_HTTP

METAQ: Final = "MetaQ"
ROCKETMQ: Final = "RocketMQ"

_TLS_HELLO: Final = b"\x16\x03"
_TLS_ALERT: Final = bytes((0x15, 3, 3, 0, 2, 2, 40))
"""Fatal: handshake failure."""

_HTTP: Final = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|CONNECT|TRACE|PRI) [/*h]")
_TEXT: Final = re.compile(rb"(?:version|stats|put|mput|get|offset|quit|transaction|sync) ?")


class Foreign(NamedTuple):
    """The protocol of a client, and the answer before its connection is closed."""

    protocol: str
    answer: bytes


def foreign_client(first: bytes, own: str) -> Foreign | None:
    """Return the protocol of a client whose ``first`` bytes these are; ``None``: the port's own protocol, or unknown.
    """
    if first.startswith(_TLS_HELLO):
        return Foreign("TLS", _TLS_ALERT)
    if _HTTP.match(first):
        text = f"{NOT_FOR_HTTP}{own}, not for HTTP.\n"
        head = ("HTTP/1.1 400 Bad Request", "Content-Type: text/plain", f"Content-Length: {len(text)}")
        return Foreign("HTTP", "\r\n".join((*head, "Connection: close", "", text)).encode())
    if own == METAQ and first.startswith(b"\0"):
        return Foreign(ROCKETMQ, b"")
    if own == ROCKETMQ and _TEXT.match(first):
        return Foreign(METAQ, b"")
    return None
