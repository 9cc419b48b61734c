"""A response made of a template is byte for byte the one that is encoded field by field."""

from __future__ import annotations

from examples import in_one_test

from metaq.protocols.remoting.command import RemotingCommand, request
from metaq.protocols.remoting.frames import FrameDecoder, encode
from metaq.protocols.remoting.response_template import ResponseTemplate


@in_one_test("opaque", [0, 1, -5, (1 << 31) - 1])
@in_one_test("remark", [None, "FOUND", 'per cent %s, "quoted"'])
@in_one_test("body", [b"", b"onetwo"])
def test_it_is_what_encode_gives(opaque: int, remark: str | None, body: bytes) -> None:
    template = ResponseTemplate({"constant": "100 %", "empty": ""}, ("first", "second"), remark)
    ext = {"constant": "100 %", "empty": "", "first": "AB01", "second": "77"}
    expected = encode(request(310, opaque=opaque).reply(0, ext, body, remark))
    frame = template.frame(opaque, ("AB01", 77), body)
    assert frame == expected
    (command,) = FrameDecoder().receive(frame)
    assert isinstance(command, RemotingCommand)
    assert (command.ext, command.body, command.opaque) == (ext, body, opaque)
