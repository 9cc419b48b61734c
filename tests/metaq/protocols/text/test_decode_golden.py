"""Recorded conversations with a Java broker: every request and reply, and a segment file that it wrote."""

from __future__ import annotations

import json
import re

import pytest
from examples import in_one_test
from recordings import METAQ
from text_protocol import byte_by_byte, feed

from metaq.errors import CorruptFrame, ProtocolError
from metaq.formats.frames import walk, whole_bytes
from metaq.model import Message
from metaq.protocols.text.commands import GetOffset, Put, Result, Stats, TransactionCommand, Value, Version
from metaq.protocols.text.decode import CommandDecoder, ReplyDecoder
from metaq.protocols.text.encode import encode

SEGMENT = METAQ / "segments" / "meta-test-0" / "00000000000000000000.meta"

# Requests that were written otherwise than we would write them; all others are encoded to the recorded bytes.
OTHER_SPELLINGS = {
    b"version\r\n": Version(2147483647),
    b"stats\r\n": Stats("", 2147483647),
    b"stats 1\r\n": Stats("1", 2147483647),
}


def conversations() -> list[dict[str, object]]:
    paths = sorted(METAQ.glob("*.jsonl"))
    assert len(paths) == 3
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def request_bytes(record: dict[str, object]) -> bytes:
    """Return the request; the recording shortens a long one to its beginning and ``...(N bytes)``."""
    text = str(record["request_hex"])
    match = re.fullmatch(r"([0-9a-f]+)\.\.\.\((\d+) bytes\)", text)
    if match is None:
        return bytes.fromhex(text)
    beginning = bytes.fromhex(match[1])
    return beginning.ljust(int(match[2]), beginning[-1:])


RECORDS = conversations()


def test_the_recordings_hold_what_these_tests_rely_on() -> None:
    assert len(RECORDS) == 117
    assert sum(bool(record["server_closed"]) for record in RECORDS) == 6
    assert max(len(request_bytes(record)) for record in RECORDS) == 1572887


@in_one_test("record", RECORDS)
def test_request(record: dict[str, object]) -> None:
    request = request_bytes(record)
    decoder = CommandDecoder()
    taken = feed(decoder, [request])
    assert len(taken) == 1
    assert decoder.pending_bytes == 0
    if record["server_closed"] and request != b"quit\r\n":
        assert taken == [ProtocolError]
        return
    (command,) = taken
    if request in OTHER_SPELLINGS:
        assert command == OTHER_SPELLINGS[request]
    else:
        assert encode(command) == request  # type: ignore[arg-type]
    if len(request) < 10_000:
        assert feed(CommandDecoder(), byte_by_byte(request)) == taken


@in_one_test("record", [r for r in RECORDS if r["reply_hex"]])
def test_reply(record: dict[str, object]) -> None:
    stream = bytes.fromhex(str(record["reply_hex"]))
    (reply,) = feed(ReplyDecoder(), [stream])
    assert isinstance(reply, Result | Value)
    assert encode(reply) == stream
    assert feed(ReplyDecoder(), byte_by_byte(stream)) == [reply]
    (command,) = feed(CommandDecoder(), [request_bytes(record)])
    assert reply.opaque == command.opaque  # type: ignore[attr-defined]


def test_every_kind_of_command_was_recorded_that_a_broker_answers() -> None:
    commands = [feed(CommandDecoder(), [request_bytes(record)])[0] for record in RECORDS]
    assert {Put, GetOffset, Stats, Version, TransactionCommand} < {type(command) for command in commands}


def test_values_hold_the_frames_that_were_put() -> None:
    (record,) = [record for record in RECORDS if record["label"] == "get all from 0"]
    (value,) = feed(ReplyDecoder(), [bytes.fromhex(str(record["reply_hex"]))])
    assert isinstance(value, Value)
    frames = list(walk(value.data))
    assert [(frame.offset, frame.flag, frame.body) for frame in frames] == [
        (0, 0, b"hello"),
        (25, 0, b"world"),
        (50, 1, b"\0\0\0\3AAAFFFF"),
        (81, 0, b"abc"),
        (104, 0, b""),
        (124, 7, b"xyz"),
    ]
    assert frames[2].message == Message(b"FFFF", "AAA")
    # A Java broker stores any flag with any body. This one promises an attribute that is not there.
    with pytest.raises(CorruptFrame, match="only 3 bytes"):
        _ = frames[5].message


def test_segment_frame_by_frame() -> None:
    segment = SEGMENT.read_bytes()
    assert whole_bytes(segment) == len(segment) == 173
    assert [(frame.offset, frame.flag, frame.message) for frame in walk(segment)] == [
        (0, 0, Message(b"FFFF")),
        (24, 1, Message(b"FFFF", "AAA")),
        (55, 0, Message(b"")),
        (75, 1, Message("消息".encode(), "属性")),
        (111, 1, Message(b"zero-length attr", "")),
        (151, 0, Message(b"t1")),
    ]
