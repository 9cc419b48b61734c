"""Templates of similar responses: the JSON header is formatted once, then opaque and some values are inserted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from metaq.protocols.remoting.command import RESPONSE_FLAG, RemotingCommand
from metaq.protocols.remoting.frames import frame_head
from metaq.protocols.remoting.json_header import write_json

_OPAQUE: Final = '"opaque":0,'


class ResponseTemplate:
    """Frames of responses with code 0, the ``constant`` fields, then fields with these ``names``."""

    def __init__(self, constant: Mapping[str, str], names: Sequence[str], remark: str | None = None) -> None:
        fields = {**constant, **dict.fromkeys(names, "\0")}
        command = RemotingCommand(0, fields, flag=RESPONSE_FLAG, remark=remark)
        header = write_json(command).decode().replace("%", "%%")
        self._header = header.replace("\\u0000", "%s").replace(_OPAQUE, _OPAQUE.replace("0", "%d"))

    def frame(self, opaque: int, values: tuple[object, ...], body: bytes = b"") -> bytes:
        """Return the frame of the response to request ``opaque``.

        The values of the fields are numbers, or texts of printable ASCII characters without quotation marks and
        backslashes: they are not escaped.
        """
        header = (self._header % (*values, opaque)).encode()
        return b"".join((frame_head(len(header), len(body)), header, body))
