"""One request to a RocketMQ server over a connection of its own, for set-up and waiting.

It is independent of the protocol code of ``metaq`` on purpose, so that both cannot have the same bug.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

TIMEOUT_S: Final = 10.0
VERSION: Final = 407


@dataclass(frozen=True, slots=True)
class Account:
    access_key: str
    secret_key: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: 0 is success; otherwise ``remark`` says what is wrong."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes

    def checked(self) -> Answer:
        """Return this answer if it is a success.

        Raises:
            RuntimeError: It is an error.
        """
        if self.code:
            raise RuntimeError(f"RocketMQ answered {self.code}: {self.remark}")
        return self


def ask(
    address: str,
    code: int,
    fields: Mapping[str, object] | None = None,
    body: bytes = b"",
    account: Account | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Answer:
    """Send a request to ``host:port`` and return the response.

    Raises:
        OSError: There is no such server, or it does not answer in time.
    """
    frame = request(code, fields, body, account)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(frame)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        return _answer(_exactly(connection, size))


def request(
    code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", account: Account | None = None
) -> bytes:
    extended = {name: str(value) for name, value in (fields or {}).items()}
    if account is not None:
        extended |= signature(account, extended, body)
    header: dict[str, Any] = {"code": code, "extFields": extended, "flag": 0, "language": "OTHER", "opaque": 1}
    encoded = json.dumps(header | {"version": VERSION}).encode()
    return struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def signature(account: Account, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
    """Return the fields that sign a request: HMAC-SHA1 over the values in the order of their names, then the body."""
    signed = {**fields, "AccessKey": account.access_key}
    content = "".join(signed[name] for name in sorted(signed)).encode() + body
    digest = hmac.digest(account.secret_key.encode(), content, hashlib.sha1)
    return {"AccessKey": account.access_key, "Signature": base64.b64encode(digest).decode()}


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        more = connection.recv(min(1 << 20, size - len(received)))
        if not more:
            raise ConnectionError("RocketMQ closed the connection")
        received += more
    return bytes(received)


def _answer(frame: bytes) -> Answer:
    (size,) = struct.unpack(">i", frame[:4])
    if size >> 24:
        raise RuntimeError(f"RocketMQ answered with header type {size >> 24}")
    header = json.loads(frame[4 : 4 + size])
    return Answer(
        int(header["code"]), header.get("remark") or "", header.get("extFields") or {}, frame[4 + (size & 0xFFFFFF) :]
    )
