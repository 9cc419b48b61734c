"""docs/remoting-protocol.md: its tables are those of the code, and its examples are what the codec writes and reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metaq.errors import CorruptRecord, ProtocolError
from metaq.formats.rocketmq.batches import OVERHEAD_BYTES, decode_batch, encode_batch
from metaq.formats.rocketmq.records import MAGIC_V1, MAGIC_V2, SIZE_MIN, encode_record, read_record
from metaq.protocols.remoting.codes import LANGUAGES
from metaq.protocols.remoting.frames import FRAME_BYTES_MAX, FrameDecoder, encode
from metaq.protocols.remoting.headers import parse_request

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "remoting-protocol.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```bytes (\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_languages_and_limits_are_on_the_page() -> None:
    text = " ".join(PAGE.split())  # lines are wrapped anywhere
    assert ", ".join(f"{name} {number}" for number, name in enumerate(LANGUAGES)) in text
    assert f"{FRAME_BYTES_MAX:,}" in text
    assert f"{MAGIC_V1:08X}" in text
    assert f"{MAGIC_V2:08X}" in text


def example(text: str) -> bytes:
    """The bytes of an example: what stands before a bar in each line, hexadecimal or a text in quotation marks."""
    data = b""
    for line in text.splitlines():
        for quoted, digits in re.findall(r'"([^"]*)"|([0-9A-F]{2,})', line.partition("|")[0]):
            data += quoted.replace("'", '"').encode() if quoted else bytes.fromhex(digits)
    return data


def test_there_are_examples_of_each_kind() -> None:
    assert {kind for kind, _ in EXAMPLES} == {"frame", "record", "batch"}


@pytest.mark.parametrize(("kind", "text"), EXAMPLES, ids=[kind for kind, _ in EXAMPLES])
def test_an_example_is_whole_and_is_written_again(kind: str, text: str) -> None:
    data = example(text)
    if kind == "frame":
        (command,) = FrameDecoder().receive(data)
        assert encode(command) == data
        assert command.is_response or parse_request(command) is not None
    elif kind == "record":
        assert encode_record(read_record(data)) == data
    else:
        assert encode_batch(decode_batch(data)) == data


def test_the_layouts_add_up() -> None:
    for kind, smallest in (("stored record", SIZE_MIN), ("element of a batch", OVERHEAD_BYTES)):
        table = PAGE.partition(f"<!-- {kind} -->")[2].partition("\n\n")[0]
        sizes = [re.match(r"\| `[^`]+` \| (\d+)", line) for line in table.splitlines()]
        assert sum(int(size[1]) for size in sizes if size) == smallest


def test_cut_examples_are_refused_or_wait() -> None:
    for kind, text in EXAMPLES:
        data = example(text)
        for length in range(1, len(data)):
            if kind == "frame":
                decoder = FrameDecoder()
                try:
                    assert list(decoder.receive(data[:length])) == []
                except ProtocolError:  # the first bytes of a frame may show already that it is none
                    pytest.fail(f"{data[:length].hex()} is refused")
                assert decoder.pending_bytes == length
            else:
                with pytest.raises(CorruptRecord):
                    read_record(data[:length]) if kind == "record" else decode_batch(data[:length])
