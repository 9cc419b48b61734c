"""A response made of a template is byte for byte the one that is encoded field by field."""

from __future__ import annotations

import pytest

from metaq.protocols.remoting.command import RemotingCommand, request
from metaq.protocols.remoting.frames import FrameDecoder, encode
from metaq.protocols.remoting.response_template import ResponseTemplate


@pytest.mark.parametrize("opaque", [0, 1, -5, (1 << 31) - 1])
@pytest.mark.parametrize("remark", [None, "FOUND", 'per cent %s, "quoted"'])
@pytest.mark.parametrize("body", [b"", b"onetwo"])
def test_it_is_what_encode_gives(opaque: int, remark: str | None, body: bytes) -> None:
    template = ResponseTemplate({"constant": "100 %", "empty": ""}, ("first", "second"), remark)
    ext = {"constant": "100 %", "empty": "", "first": "AB01", "second": "77"}
    expected = encode(request(310, opaque=opaque).reply(0, ext, body, remark))
    frame = template.frame(opaque, ("AB01", 77), body)
    assert frame == expected
    (command,) = FrameDecoder().receive(frame)
    assert isinstance(command, RemotingCommand)
    assert (command.ext, command.body, command.opaque) == (ext, body, opaque)
