"""Signatures of requests, as a broker with access control requires them, in 4.x and 5.x.

The signature covers the values of all fields in the order of their names, and the body. So it is computed last: any
field that is added later invalidates it.

Source: docs/remoting-protocol.md, "Signatures".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from metaq.model import Buffer
from metaq.protocols.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
UNSIGNED: Final = frozenset({SIGNATURE, "_UNIQUE_KEY_QUERY"})
"""Fields that are not signed. Java adds the second one after signing."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of an account. The secrets are not in the ``repr``."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def signature(ext: Mapping[str, str], body: Buffer, secret_key: str) -> str:
    """Return the signature of a request with these fields and this body."""
    # Java sorts by UTF-16 units, which differs from code points only above the surrogates.
    names = sorted((name for name in ext if name not in UNSIGNED), key=lambda name: name.encode("utf-16-be", "replace"))
    fields = "".join([ext[name] for name in names]).encode("utf-8", "replace")
    signed = hmac.new(secret_key.encode(), fields, hashlib.sha1)
    signed.update(body)
    return base64.b64encode(signed.digest()).decode()


def sign(command: RemotingCommand, credentials: Credentials, body: Buffer | None = None) -> RemotingCommand:
    """Return ``command`` signed with ``credentials``. With the binary header, no field may be empty: a broker reads it
    as null, and computes another signature. ``body`` replaces the command's body.
    """
    ext = {**command.ext, ACCESS_KEY: credentials.access_key}
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, command.body if body is None else body, credentials.secret_key)
    return replace(command, ext=ext)


def is_signed_by(command: RemotingCommand, credentials: Credentials) -> bool:
    """Whether ``command`` has the access key of ``credentials`` and a valid signature."""
    if command.ext.get(ACCESS_KEY) != credentials.access_key:
        return False
    expected = signature(command.ext, command.body, credentials.secret_key)
    return hmac.compare_digest(expected.encode(), command.ext.get(SIGNATURE, "").encode("utf-8", "replace"))
