"""Who asks: the keys of an account, and the signature that a server checks.

Source: docs/remoting-protocol.md, "Accounts".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from metaq.protocols.remoting.command import RemotingCommand

_SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Account:
    """The keys of an account; the secret ones are not shown by ``repr``.

    Raises:
        ValueError: A key is empty.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, value in (("access_key", self.access_key), ("secret_key", self.secret_key)):
            if not value:
                raise ValueError(f"{name}: expected a key, got an empty text")

    def signed(self, command: RemotingCommand) -> RemotingCommand:
        """Return ``command`` with the account's name and a signature over its fields and its body."""
        ext = {**command.ext, "AccessKey": self.access_key}
        if self.security_token is not None:
            ext["SecurityToken"] = self.security_token
        ext[_SIGNATURE] = signature(self.secret_key, ext, command.body)
        return replace(command, ext=ext)


def signature(secret_key: str, ext: Mapping[str, str], body: bytes) -> str:
    """Base64 of the HMAC-SHA1 over the values of ``ext``, ordered by name, and the body; an old signature is left out.

    Names of fields are ASCII, so their order as text is Java's.
    """
    values = "".join(value for name, value in sorted(ext.items()) if name != _SIGNATURE)
    mac = hmac.new(secret_key.encode(), values.encode(), hashlib.sha1)
    mac.update(body)
    return base64.b64encode(mac.digest()).decode("ascii")
