"""A request or response of the remoting protocol, as a value.

Both sides of a connection send requests, and each numbers its own: the flag shows whether a command is a response, the
opaque to which request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from metaq.protocols.remoting.codes import VERSION

RESPONSE_FLAG: Final = 1
"""Bit of ``flag``: a response."""
ONEWAY_FLAG: Final = 2
"""Bit of ``flag``: no response is expected, and none is sent."""


class Codec(IntEnum):
    """The encoding of a header; the number is the top byte of the frame's second word."""

    JSON = 0
    BINARY = 1


@dataclass(slots=True)
class RemotingCommand:
    """A request or a response. It is never changed; frozen it would take four times as long to make.

    ``code`` is the ``CODE`` of a header or a ``ResponseCode``; any number is allowed. ``ext`` has the header's own
    fields as text (Java: ``extFields``), without fields that are null. ``opaque`` is a signed 32-bit number.
    ``language`` is a name of ``LANGUAGES``, empty if it was missing; ``version`` is the sender's, as an ordinal.
    ``codec`` is the encoding of the header, and the default for ``encode``; it is ignored in comparisons.
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
        """Whether this is a response."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no response, not even an error."""
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
    """Return a request; ``oneway``: no response is expected."""
    flag = ONEWAY_FLAG if oneway else 0
    return RemotingCommand(code, {} if ext is None else ext, body, opaque, flag, codec=codec)
