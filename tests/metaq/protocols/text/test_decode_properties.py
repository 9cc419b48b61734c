"""What holds for every command, and for any bytes at all."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import get_args

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from text_protocol import byte_by_byte, feed, take

from metaq.errors import CorruptFrame, ProtocolError
from metaq.formats.frames import encode_body, encode_frame, walk, whole_bytes
from metaq.model import LocalTransactionId, Message, Xid, parse_transaction_id
from metaq.protocols.text.commands import (
    Command,
    Decide,
    Fetch,
    Get,
    GetFiltered,
    GetOffset,
    GroupRequest,
    OffsetMode,
    Put,
    PutBatch,
    Quit,
    Reply,
    ReportTypes,
    Result,
    Stats,
    Sync,
    TransactionCommand,
    Value,
    Version,
)
from metaq.protocols.text.decode import CommandDecoder, ReplyDecoder
from metaq.protocols.text.encode import encode

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
name = st.text(st.characters(exclude_characters=" \r\n", exclude_categories=["Cs"]), min_size=1, max_size=12)
key_part = st.text(st.characters(exclude_characters=" \t\r\n:", exclude_categories=["Cs"]), min_size=1, max_size=12)
body = st.binary(max_size=60) | st.sampled_from([b"\r\n", b"quit\r\n", b"put t 0 5 0 1 2\r\n"])
local_key = st.builds(LocalTransactionId, key_part, int32)
xa_key = st.builds(Xid, int32, st.binary(max_size=8), st.binary(max_size=8), key_part)
key = local_key | xa_key
type_name = name.filter(lambda text: "," not in text)
reported_type = st.text(st.characters(exclude_characters="\x04", exclude_categories=["Cs"])).filter(str.strip)
unique = name.filter(lambda text: not text.encode().isdigit())
transaction_type = st.sampled_from(
    ["BEGIN", "PREPARE", "COMMIT_ONE_PHASE", "COMMIT_TWO_PHASE", "ROLLBACK", "RECOVER", "FORGET", "END"]
)
optional_words = st.tuples(st.none() | st.integers(0, 2**31 - 1), st.none() | unique) | st.tuples(
    st.integers(0, 2**31 - 1), name
)

natural, long_natural = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)

command = st.one_of(
    st.builds(Put, name, int32, body, int32, int32, st.none() | int32, st.none() | key),
    st.builds(PutBatch, name, int32, body, st.integers(1, 2**31 - 1), int32, st.none() | key),
    st.builds(Get, name, name, int32, int64, int32, int32),
    st.builds(GetFiltered, name, name, int32, int64, int32, st.lists(type_name, min_size=1).map(tuple), int32),
    st.builds(Fetch, name, name, name, int32, int64, int32, int32, int64),
    st.builds(ReportTypes, name, name, name, int32, int64, st.lists(reported_type, min_size=1).map(tuple)),
    st.builds(GetOffset, name, name, int32, int64, int32, st.sampled_from(get_args(OffsetMode))),
    st.builds(Stats, name | st.just(""), int32),
    st.builds(Version, int32),
    st.just(Quit()),
    st.builds(
        lambda k, s, t, o, words: TransactionCommand(k, s, t, o, *words),
        st.none() | key,
        name,
        transaction_type,
        int32,
        optional_words,
    ),
    st.builds(Sync, name, int32, body, int32, int64, int32, st.none() | int32),
    st.builds(GroupRequest, name, name, body, int32),
    st.builds(Decide, name, int64, st.lists(key, max_size=4).map(tuple), int32, st.none(), st.just(())),
    st.builds(
        Decide,
        name,
        int64,
        st.lists(key, min_size=3, max_size=4).map(tuple),
        int32,
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20),
        st.sampled_from([(), (0,), (1,), (0, 2), (0, 1, 2)]),
    ),
)
reply = st.builds(Result, int32, st.text(st.characters(exclude_categories=["Cs"]), max_size=40), int32) | st.builds(
    Value, body, int32
)


@st.composite
def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """The same bytes in random pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]


@given(st.lists(command, min_size=1, max_size=5), st.data())
def test_commands_come_back_in_any_chunks(commands: list[Command], data: st.DataObject) -> None:
    decoder = CommandDecoder()
    taken = feed(decoder, data.draw(cut(b"".join(map(encode, commands)))))
    assert taken == commands
    assert [type(item) for item in taken] == [type(item) for item in commands]
    assert decoder.pending_bytes == 0


@given(st.lists(reply, min_size=1, max_size=5), st.data())
def test_replies_come_back_in_any_chunks(replies: list[Reply], data: st.DataObject) -> None:
    taken = feed(ReplyDecoder(), data.draw(cut(b"".join(map(encode, replies)))))
    assert taken == replies
    assert [type(item) for item in taken] == [type(item) for item in replies]


@given(key)
def test_transaction_keys_come_back(key: LocalTransactionId | Xid) -> None:
    assert parse_transaction_id(str(key)) == key


good_numbers = [b"0", b"3", b"-1", b"12", b"007", b"2147483647", b"-2147483648"]
bad_numbers = [b"", b"+5", b"1_0", b"\t5", b"-", b"--5", b"5-", b"x", b"2147483648", b"-2147483649", b"9" * 30, b"\xff"]
token = st.sampled_from([*good_numbers, *bad_numbers, b"t", b"TX:s:1", b"null"])
line = st.builds(
    lambda word, tokens: b" ".join([word, *tokens]),
    st.sampled_from(
        [
            b"put",
            b"put",
            b"put",
            b"get",
            b"fget",
            b"fetch",
            b"messageType",
            b"offset",
            b"stats",
            b"version",
            b"sync",
            b"mput",
            b"transaction",
            b"",
        ]
    ),
    st.lists(token, max_size=8),
)
# The usual put with a few numbers replaced, or with a token too many or too few.
usual_put = st.builds(
    lambda numbers, odd, at: b" ".join([b"put", b"t", *numbers[:at], *odd, *numbers[at + 1 :]]),
    st.lists(st.sampled_from(good_numbers), min_size=5, max_size=5),
    st.lists(token, max_size=2),
    st.integers(0, 6),
)


@settings(max_examples=examples(500))
@given(st.lists(line | usual_put, min_size=1, max_size=3), st.integers(0, 12))
def test_the_short_way_for_puts_means_what_the_long_one_means(lines: list[bytes], body_bytes_max: int) -> None:
    """Whole chunks may take the short way; byte by byte nothing does."""
    stream = b"\r\n123".join([*lines, b"version 1\r\n"])
    whole = feed(CommandDecoder(body_bytes_max=body_bytes_max), [stream])
    assert whole == feed(CommandDecoder(body_bytes_max=body_bytes_max), byte_by_byte(stream))


LINE_MAX, BODY_MAX = 40, 30
noise = st.lists(
    st.binary(max_size=50) | command.map(encode) | reply.map(encode) | line.map(lambda text: text + b"\r\n"), max_size=6
).map(b"".join)


@settings(max_examples=examples(300))
@given(noise, st.data())
def test_any_bytes_end_in_commands_or_a_protocol_error(stream: bytes, data: st.DataObject) -> None:
    for decoder in (CommandDecoder(LINE_MAX, BODY_MAX), ReplyDecoder(LINE_MAX, BODY_MAX)):
        taken: list[object] = []
        for chunk in data.draw(cut(stream)):
            decoder.receive_data(chunk)
            taken += take(decoder)
            # What waits is a line without its end or a body without its end, never both and never more.
            assert decoder.pending_bytes <= max(LINE_MAX + 1, BODY_MAX)
            if taken and taken[-1] is ProtocolError:
                break
        assert len(taken) <= len(stream) + 1


frame = st.tuples(int64, int32, st.binary(max_size=30))
message = st.builds(
    Message, st.binary(max_size=20), st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
)


@given(st.lists(frame, max_size=6), st.integers(0, 40), st.integers(0, 2**50))
def test_frames_come_back_up_to_the_cut(frames: list[tuple[int, int, bytes]], lost: int, base: int) -> None:
    encoded = [encode_frame(*each) for each in frames]
    run = b"".join(encoded)
    run = run[: max(0, len(run) - lost)]
    walked = list(walk(run, base))
    assert [(each.message_id, each.flag, each.body) for each in walked] == frames[: len(walked)]
    assert whole_bytes(run) == sum(map(len, encoded[: len(walked)]))
    assert len(run) - whole_bytes(run) < (len(encoded[len(walked)]) if len(walked) < len(encoded) else 1)
    assert [each.offset for each in walked] + [base + whole_bytes(run)] == [base, *(each.end for each in walked)]


@given(message, int64)
def test_messages_come_back(message: Message, message_id: int) -> None:
    (walked,) = walk(encode_frame(message_id, *encode_body(message)))
    assert walked.message == message


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_corrupt_frame(run: bytes) -> None:
    for verify in (True, False):
        with suppress(CorruptFrame):
            walked = list(walk(run, verify=verify))
            assert sum(20 + len(each.body) for each in walked) == whole_bytes(run)
            for each in walked:
                _ = each.message
