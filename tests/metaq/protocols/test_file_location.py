"""The line that says where a partition's bytes are on the disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.model import INT64_MAX
from metaq.protocols.file_location import FileLocation, encode_file_location, parse_file_location
from metaq.protocols.text.commands import Result
from metaq.protocols.text.decode import ReplyDecoder
from metaq.protocols.text.encode import encode

NUMBERS = st.integers(0, INT64_MAX)
PATHS = st.binary(max_size=60).map(lambda name: "/" + name.replace(b"\0", b"0").decode("utf-8", "surrogateescape"))
PLACES = st.builds(FileLocation, NUMBERS, st.integers(1, INT64_MAX), NUMBERS, NUMBERS, st.just("f3c0-1"), PATHS)


@given(place=PLACES)
def test_what_was_said_is_understood_over_the_wire(place: FileLocation) -> None:
    decoder = ReplyDecoder()
    decoder.receive_data(encode(Result(200, encode_file_location(place), 7)))
    reply = decoder.next_reply()
    assert isinstance(reply, Result)
    assert parse_file_location(reply.text) == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",  # what MetaQ's own offset command says
        "0 10 1 2 boot",
        "0 10 1 2 boot relative/path",
        "0 0 1 2 boot /no/bytes",
        "-1 10 1 2 boot /before/the/file",
        "0 10 1 x boot /no/number",
        "0 \u0661\u0660 1 2 boot /digits/of/another/script",
        "0 99999999999999999999 1 2 boot /too/long",
        "0 10 1 2  /no/boot",
    ],
)
def test_anything_else_is_refused_and_shown(text: str) -> None:
    with pytest.raises(ValueError, match="expected POSITION LENGTH DEVICE INODE BOOT PATH") as refused:
        parse_file_location(text)
    assert repr(text[:20])[1:-1] in str(refused.value)
