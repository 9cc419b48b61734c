"""Frames and headers against those of Java's own classes, in pieces of every size, and wrong ones."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from examples import in_one_test
from recordings import content, lines

from metaq.errors import FieldError, ProtocolError
from metaq.protocols.remoting.command import Codec, RemotingCommand, request
from metaq.protocols.remoting.frames import FRAME_BYTES_MAX, FrameDecoder, encode

HEADERS = lines("headers.jsonl")


def frame(header: bytes, body: bytes = b"", codec: int = 0, length: int | None = None) -> bytes:
    length = 4 + len(header) + len(body) if length is None else length
    return struct.pack(">iI", length, codec << 24 | len(header)) + header + body


def decode(data: bytes, **limits: int) -> list[RemotingCommand]:
    return list(FrameDecoder(**limits).receive(data))


def one(data: bytes) -> RemotingCommand:
    (command,) = decode(data)
    return command


def json_header(text: str) -> RemotingCommand:
    return one(frame(text.encode()))


@in_one_test("row", HEADERS)
class TestJava:
    def test_reads_what_java_reads(self, row: dict[str, Any]) -> None:
        command, java = one(bytes.fromhex(row["frame_hex"])), row["decoded"]
        assert (command.code, command.opaque, command.flag) == (java["code"], java["opaque"], java["flag"])
        assert (command.language, command.version) == (java["language"], java["version"])
        assert command.body == bytes.fromhex(java["body"] or "")
        assert (command.remark or None) == (java["remark"] or None)
        assert command.ext == {name: value or "" for name, value in (java["extFields"] or {}).items()}
        assert command.codec is (Codec.JSON if row["codec"] == "JSON" else Codec.BINARY)

    def test_writes_what_java_wrote(self, row: dict[str, Any]) -> None:
        data = bytes.fromhex(row["frame_hex"])
        command = one(data)
        written = encode(command)
        if row["codec"] == "JSON" and row["decoded"]["extFields"] is None:
            # An absent extFields is written as an empty one, which some of Java's handlers need.
            header = written[8 : len(written) - len(command.body)]
            written = frame(header.replace(b'"extFields":{},', b""), command.body)
        assert written == data

    @pytest.mark.parametrize("codec", Codec)
    def test_survives_both_codecs(self, row: dict[str, Any], codec: Codec) -> None:
        command = one(bytes.fromhex(row["frame_hex"]))
        if codec is Codec.BINARY and command.code > 32_767:
            with pytest.raises(FieldError, match="field 'code' of 200050 is '200050'"):
                encode(command, codec)
            return
        again = one(encode(command, codec))
        assert again == command or (again.remark, command.remark) == (None, "")
        assert again.codec is codec


class TestFeedings:
    DATA = b"".join(bytes.fromhex(row["frame_hex"]) for row in HEADERS)
    COMMANDS = [one(bytes.fromhex(row["frame_hex"])) for row in HEADERS]

    @pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 1000, len(DATA)])
    def test_in_chunks(self, size: int) -> None:
        decoder = FrameDecoder()
        found = [
            command
            for start in range(0, len(self.DATA), size)
            for command in decoder.receive(self.DATA[start : start + size])
        ]
        assert found == self.COMMANDS
        assert decoder.pending_bytes == 0

    def test_with_trailing_bytes(self) -> None:
        decoder = FrameDecoder()
        assert list(decoder.receive(self.DATA + self.DATA[:50])) == self.COMMANDS
        assert decoder.pending_bytes == 50
        assert next(decoder.receive(self.DATA[50:])) == self.COMMANDS[0]

    def test_commands_left_in_an_iterator_come_out_of_the_next(self) -> None:
        decoder = FrameDecoder()
        assert next(decoder.receive(self.DATA)) == self.COMMANDS[0]
        assert list(decoder.receive(memoryview(b""))) == self.COMMANDS[1:]


class TestLenientJson:
    def test_missing_keys(self) -> None:
        command = json_header('{"code":105}')
        assert command == RemotingCommand(105, language="", version=0)

    def test_unknown_keys_null_and_other_types(self) -> None:
        command = json_header(
            '{"code":"11","opaque":"-7","remark":null,"language":"ZIG","new":[{}],"extFields":'
            '{"queueId":3,"big":9007199254740993,"batch":false,"none":null,"half":1.50,"e":1E400,"nan":NaN,"o":{"a":[1]}}}'
        )
        assert (command.code, command.opaque, command.remark, command.language) == (11, -7, None, "ZIG")
        numbers = {"queueId": "3", "big": "9007199254740993", "half": "1.50", "e": "1E400", "nan": "NaN"}
        assert command.ext == numbers | {"batch": "false", "o": '{"a":[1]}'}

    def test_ext_of_null_is_empty(self) -> None:
        assert json_header('{"extFields":null,"code":1}').ext == {}

    def test_a_lone_surrogate_is_written_as_java_writes_it(self) -> None:
        command = json_header('{"code":1,"remark":"\\ud800"}')
        assert one(encode(command)).remark == "?"


class TestCommand:
    def test_reply_has_the_opaque_and_the_codec(self) -> None:
        asked = request(105, {"topic": "T"}, opaque=9, codec=Codec.BINARY)
        answer = asked.reply(17, remark="no route")
        assert (answer.code, answer.opaque, answer.is_response, answer.codec) == (17, 9, True, Codec.BINARY)
        assert (asked.is_response, asked.is_oneway, request(15, oneway=True).is_oneway) == (False, False, True)

    @pytest.mark.parametrize("field", ["code", "opaque", "flag"])
    def test_a_number_that_does_not_fit(self, field: str) -> None:
        with pytest.raises(FieldError, match=f"field '{field}' of .* a number of 32 bits"):
            encode(RemotingCommand(**{"code": 1, field: 1 << 31}))

    def test_a_header_that_does_not_fit(self) -> None:
        with pytest.raises(FieldError, match="field 'header' of 1 is '16777"):
            encode(RemotingCommand(1, {"x": "y" * (1 << 24)}))

    def test_a_name_that_does_not_fit_the_binary_header(self) -> None:
        with pytest.raises(FieldError, match="at most 32767 bytes"):
            encode(RemotingCommand(1, {"x" * 32_768: "y"}, codec=Codec.BINARY))


BINARY = encode(RemotingCommand(30, {"topic": "T", "queueId": "0"}, b"", 1, codec=Codec.BINARY))[8:]
MANY_FIELDS = encode(RemotingCommand(30, {f"{number}": "" for number in range(65_537)}, codec=Codec.BINARY))[8:]

WRONG = {
    "length 0": (struct.pack(">i", 0), "length of 0, below 4"),
    "length -1": (struct.pack(">i", -1), "length of -1, below 4"),
    "length 3": (struct.pack(">i", 3), "length of 3, below 4"),
    "too long": (struct.pack(">i", FRAME_BYTES_MAX - 3), "frame of 16777217 bytes, above the limit of 16777216"),
    "no header": (frame(b"", b"x"), "header of 0 bytes"),
    "header beyond the frame": (struct.pack(">ii", 10, 7), "frame of length 10 with a header of 7 bytes"),
    "unknown type": (frame(b"{}", codec=2), "header of type 2, not 0 or 1"),
    "half JSON": (frame(b'{"code":1'), "header is no JSON"),
    "list": (frame(b"[]"), "header is no JSON object"),
    "bare keys": (frame(b"{code:1}"), "header is no JSON"),
    "deep JSON": (frame(b"[" * 60_000), "header is no JSON"),
    "many lists": (frame(b"[" + b"[]," * 70_000 + b"1]"), "more than 65536 objects and lists"),
    "many texts": (frame(b"{" + b'"a":"",' * 70_000 + b'"b":1}'), "more than 262144 quotation marks"),
    "many digits": (frame(b'{"code":' + b"1" * 5000 + b"}"), "header is no JSON"),
    "code text": (frame(b'{"code":"x"}'), "'code' is 'x', not a 32-bit number"),
    "opaque above 32 bits": (frame(b'{"opaque":2147483648}'), "'opaque' is '2147483648', not a 32-bit number"),
    "code list": (frame(b'{"code":[]}'), "'code' is '\\[\\]', not a 32-bit number"),
    "ext list": (frame(b'{"extFields":[1]}'), "'extFields' is no JSON object"),
    "short binary": (frame(BINARY[:20], codec=1), "binary header of 20 bytes is cut off"),
    "binary remark": (frame(BINARY[:13] + struct.pack(">i", 99) + BINARY[17:], codec=1), "a text of 99 bytes"),
    "negative remark": (frame(BINARY[:13] + struct.pack(">i", -1) + BINARY[17:], codec=1), "a text of -1 bytes"),
    "binary fields": (frame(BINARY[:17] + struct.pack(">i", 99) + BINARY[21:], codec=1), "fields of 99 bytes"),
    "negative fields": (frame(BINARY[:17] + struct.pack(">i", -2) + BINARY[21:], codec=1), "fields of -2 bytes"),
    "field cut off": (frame(BINARY[:17] + struct.pack(">i", 1) + b"\0", codec=1), "is cut off"),
    "many fields": (frame(MANY_FIELDS, codec=1), "binary header with more than 65536 fields"),
    "field too long": (
        frame(BINARY[:17] + struct.pack(">i", len(BINARY) - 22) + BINARY[21:], codec=1),
        "longer than the fields",
    ),
}


class TestWrongFrames:
    @in_one_test("data, message", WRONG.values())
    def test_is_final_and_comes_after_what_was_right(self, data: bytes, message: str) -> None:
        decoder, right = FrameDecoder(), request(105, {"topic": "T"})
        found = decoder.receive(encode(right) + data)
        assert next(found) == right
        with pytest.raises(ProtocolError, match=message):
            next(found)
        with pytest.raises(ProtocolError, match=message):
            list(decoder.receive(encode(right)))
        assert decoder.pending_bytes == 0

    def test_the_longest_frame(self) -> None:
        head = b'{"code":1}'
        whole = frame(head, bytes(FRAME_BYTES_MAX - 8 - len(head)))
        assert len(one(whole).body) == FRAME_BYTES_MAX - 18
        assert decode(frame(head, length=FRAME_BYTES_MAX - 4)) == []

    def test_a_header_above_the_limit_is_refused_before_it_has_come(self) -> None:
        with pytest.raises(ProtocolError, match="header of 101 bytes, above the limit of 100"):
            decode(frame(bytes(101))[:8], header_bytes_max=100)


NEITHER_CLIENT_NOR_5_X_WRITES_SO = "lenient JSON header: unquoted keys, single quotes"


def test_what_closed_a_connection_of_a_real_name_server_ends_the_decoder() -> None:
    closed = answered = 0
    for row in lines("ns_routes.jsonl"):
        step = row.get("step", {})
        if step.get("op") != "raw" or step["label"] == NEITHER_CLIENT_NOR_5_X_WRITES_SO:
            continue
        decoder, commands = FrameDecoder(), []
        try:
            for piece in step["bytes"]:
                commands += list(decoder.receive(content(piece)))
        except ProtocolError:
            assert step["conn"] in row["closed"], step["label"]
            closed += 1
            continue
        assert row["closed"] == [], step["label"]
        assert len(commands) >= len(row["replies"]), step["label"]
        answered += len(row["replies"])
    assert (closed, answered) == (12, 9)
