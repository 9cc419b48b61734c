"""One request or response of the remoting protocol, as a value.

Requests go in both directions of a connection, and each direction numbers its own: whether a command answers something
shows in its flag alone, what it answers by its opaque.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from metaq.protocols.remoting.codes import VERSION

RESPONSE_FLAG: Final = 1
"""Bit of ``flag``: this answers a request of the other side."""
ONEWAY_FLAG: Final = 2
"""Bit of ``flag``: nobody waits for an answer, and none is sent."""


class Codec(IntEnum):
    """How a header is written; the number is the top byte of the frame's second word."""

    JSON = 0
    BINARY = 1


@dataclass(frozen=True, slots=True)
class RemotingCommand:
    """A request or a response.

    ``code`` is a ``RequestCode`` or a ``ResponseCode``; any number is carried. ``ext`` has the header's own fields as
    text (Java: ``extFields``); a field that is null on the wire is not in it. ``opaque`` is a signed 32-bit number.
    ``language`` is a name of ``LANGUAGES``, empty if it was missing; ``version`` is the sender's, as an ordinal.
    ``codec`` is how the header came, and how it goes unless ``encode`` is given another; it is not compared.
    """

    code: int
    ext: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str = "PYTHON"
    version: int = VERSION
    codec: Codec = field(default=Codec.JSON, compare=False)

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of the other side."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer, not even that of an error."""
        return bool(self.flag & ONEWAY_FLAG)

    def numbered(self, opaque: int) -> RemotingCommand:
        """Return this command with another opaque."""
        return RemotingCommand(
            self.code, self.ext, self.body, opaque, self.flag, self.remark, self.language, self.version, self.codec
        )

    def reply(
        self, code: int = 0, ext: Mapping[str, str] | None = None, body: bytes = b"", remark: str | None = None
    ) -> RemotingCommand:
        """Return the response to this request: with its opaque, in its codec."""
        return RemotingCommand(
            code, {} if ext is None else ext, body, self.opaque, RESPONSE_FLAG, remark, codec=self.codec
        )


def request(
    code: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 0,
    oneway: bool = False,
    codec: Codec = Codec.JSON,
) -> RemotingCommand:
    """Return a request; ``oneway``: no answer is wanted."""
    flag = ONEWAY_FLAG if oneway else 0
    return RemotingCommand(code, {} if ext is None else ext, body, opaque, flag, codec=codec)
