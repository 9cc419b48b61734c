"""Every command and reply that we know, as bytes and as a value, in both directions and in three feedings."""

from __future__ import annotations

import pytest
from examples import in_one_test
from text_protocol import TRAILING, byte_by_byte, feed, take

from metaq.model import LocalTransactionId, Xid
from metaq.protocols.text.commands import (
    NO_OPAQUE,
    Command,
    Decide,
    Fetch,
    Get,
    GetFiltered,
    GetOffset,
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
from metaq.protocols.text.encode import encode, encode_value_line

LOCAL = LocalTransactionId("10.0.0.1-1363-2", 7)
XA = Xid(4660, b"\x01\xff", b"\xa0", "uniq")
XA_TEXT = b"XID:4660:01ff:a0:uniq"
HIGH, LOW = 2**31 - 1, -(2**31)

COMMANDS: list[tuple[bytes, Command]] = [
    # put in its four forms
    (b"put orders 0 5 0 1\r\nhello", Put("orders", 0, b"hello", 0, 1, None)),
    (b"put orders 3 5 0 980881731 2\r\nworld", Put("orders", 3, b"world", 0, 2, 980881731)),
    (b"put orders -1 3 7 -1 -2147483648\r\nabc", Put("orders", -1, b"abc", 7, LOW, -1)),
    (b"put orders 0 0 0 0 2147483647\r\n", Put("orders", 0, b"", 0, HIGH, 0)),
    (b"put orders 0 2 0 TX:10.0.0.1-1363-2:7 9\r\nO1", Put("orders", 0, b"O1", 0, 9, None, LOCAL)),
    (b"put orders 0 2 0 -1 " + XA_TEXT + b" 9\r\nX1", Put("orders", 0, b"X1", 0, 9, -1, XA)),
    (b"put orders 0 4 -2 12 TX:10.0.0.1-1363-2:7 9\r\n\r\n\r\n", Put("orders", 0, b"\r\n\r\n", -2, 9, 12, LOCAL)),
    ("put bestellung-ü/消息 0 1 0 5 6\r\nx".encode(), Put("bestellung-ü/消息", 0, b"x", 0, 6, 5)),
    (b"put version\t1 0 1 0 5 6\r\nx", Put("version\t1", 0, b"x", 0, 6, 5)),
    # reading
    (b"get orders g1 0 -1 1048576 30\r\n", Get("orders", "g1", 0, -1, 1048576, 30)),
    (b"get orders g1 5 9223372036854775807 -5 34\r\n", Get("orders", "g1", 5, 2**63 - 1, -5, 34)),
    (b"offset orders g1 0 30 44\r\n", GetOffset("orders", "g1", 0, 30, 44)),
    (b"offset orders g1 0 30 44 boundary\r\n", GetOffset("orders", "g1", 0, 30, 44, "boundary")),
    (
        b"offset orders g1 0 1700000000000 -4 timestamp\r\n",
        GetOffset("orders", "g1", 0, 1700000000000, -4, "timestamp"),
    ),
    (b"offset orders g1 0 30 44 ordinal\r\n", GetOffset("orders", "g1", 0, 30, 44, "ordinal")),
    (b"offset orders g1 0 -7 44 message\r\n", GetOffset("orders", "g1", 0, -7, 44, "message")),
    (b"offset orders g1 0 0 45 file\r\n", GetOffset("orders", "g1", 0, 0, 45, "file")),
    (b"offset orders g1 0 0 44 incarnation\r\n", GetOffset("orders", "g1", 0, 0, 44, "incarnation")),
    # about the broker
    (b"stats  7\r\n", Stats("", 7)),
    (b"stats offsets 10\r\n", Stats("offsets", 10)),
    (b"version -2147483648\r\n", Version(LOW)),
    (b"quit\r\n", Quit()),
    # transactions
    (b"transaction TX:10.0.0.1-1363-2:7 s BEGIN 10\r\n", TransactionCommand(LOCAL, "s", "BEGIN", 10)),
    (b"transaction " + XA_TEXT + b" s BEGIN 30 10\r\n", TransactionCommand(XA, "s", "BEGIN", 10, 30)),
    (b"transaction " + XA_TEXT + b" s BEGIN 30 uniq 10\r\n", TransactionCommand(XA, "s", "BEGIN", 10, 30, "uniq")),
    (b"transaction " + XA_TEXT + b" s BEGIN 30 31 10\r\n", TransactionCommand(XA, "s", "BEGIN", 10, 30, "31")),
    (b"transaction " + XA_TEXT + b" s PREPARE 10\r\n", TransactionCommand(XA, "s", "PREPARE", 10)),
    (b"transaction " + XA_TEXT + b" s COMMIT_ONE_PHASE 10\r\n", TransactionCommand(XA, "s", "COMMIT_ONE_PHASE", 10)),
    (b"transaction " + XA_TEXT + b" s COMMIT_TWO_PHASE 10\r\n", TransactionCommand(XA, "s", "COMMIT_TWO_PHASE", 10)),
    (b"transaction " + XA_TEXT + b" s ROLLBACK 10\r\n", TransactionCommand(XA, "s", "ROLLBACK", 10)),
    (b"transaction null s RECOVER 10\r\n", TransactionCommand(None, "s", "RECOVER", 10)),
    (b"transaction null s RECOVER uniq 10\r\n", TransactionCommand(None, "s", "RECOVER", 10, None, "uniq")),
    (b"transaction null s RECOVER -5 10\r\n", TransactionCommand(None, "s", "RECOVER", 10, None, "-5")),
    (b"transaction " + XA_TEXT + b" s FORGET 10\r\n", TransactionCommand(XA, "s", "FORGET", 10)),
    (b"transaction " + XA_TEXT + b" s END 10\r\n", TransactionCommand(XA, "s", "END", 10)),
    # master to synchronous slave
    (b"sync orders 0 3 0 -777 53\r\nabc", Sync("orders", 0, b"abc", 0, -777, 53, None)),
    (b"sync orders 0 3 1 777 -1 53\r\nabc", Sync("orders", 0, b"abc", 1, 777, 53, -1)),
    # extensions
    (b"mput orders 0 4 2 8\r\nABCD", PutBatch("orders", 0, b"ABCD", 2, 8)),
    (b"mput orders 0 4 2 " + XA_TEXT + b" 8\r\nABCD", PutBatch("orders", 0, b"ABCD", 2, 8, XA)),
    (b"fget orders g1 0 30 1048576 paid 8\r\n", GetFiltered("orders", "g1", 0, 30, 1048576, ("paid",), 8)),
    (b"fget orders g1 5 -1 -5 a_1,B,0 -8\r\n", GetFiltered("orders", "g1", 5, -1, -5, ("a_1", "B", "0"), -8)),
    ("fget orders g1 0 0 1 ü,,- 8\r\n".encode(), GetFiltered("orders", "g1", 0, 0, 1, ("ü", "", "-"), 8)),
    # MetaQ 2.1
    (
        b"fetch 2.1 orders g1 0 30 1048576 8 1769860800000\r\n",
        Fetch("2.1", "orders", "g1", 0, 30, 1048576, 8, 1769860800000),
    ),
    (b"messageType 2.1 g1 orders 8 -5 1\r\n*", ReportTypes("2.1", "g1", "orders", 8, -5, ("*",))),
    (
        b"messageType 2.1 group topic 2012 1769860800000 13\r\ntype1 a\x04type2",
        ReportTypes("2.1", "group", "topic", 2012, 1769860800000, ("type1 a", "type2")),
    ),
    (b"messageType 2.1 g orders 8 0 3\r\na\x04\xff", ReportTypes("2.1", "g", "orders", 8, 0, ("a", "\udcff"))),
    # decisions
    (b"decide q-1 12 0 8\r\n", Decide("q-1", 12, (), 8)),
    (b"decide q-1 -1 21 8\r\n" + XA_TEXT, Decide("q-1", -1, (XA,), 8)),
    (
        b"decide q-1 9223372036854775807 43 8\r\n" + XA_TEXT + b"\r\nTX:10.0.0.1-1363-2:7",
        Decide("q-1", 2**63 - 1, (XA, LOCAL), 8),
    ),
    (b"decide q-1 12 4 contents 8\r\n\r\n\r\n", Decide("q-1", 12, (), 8, "", ())),
    (b"decide q-1 12 30 contents 8\r\n0\r\n{ x}\r\n" + XA_TEXT, Decide("q-1", 12, (XA,), 8, "{ x}", (0,))),
]

REPLIES: list[tuple[bytes, Reply]] = [
    (b"result 200 0 3\r\n", Result(200, "", 3)),
    (b"result 200 24 -2147483648\r\n-5468928973104730112 0 0", Result(200, "-5468928973104730112 0 0", LOW)),
    ("result 503 6 2147483647\r\n未注".encode(), Result(503, "未注", HIGH)),
    (b"result 200 5 3\r\n\r\n\xd6\xd0\xff", Result(200, "\r\n\udcd6\udcd0\udcff", 3)),
    (b"value 0 4\r\n", Value(b"", 4)),
    (b"value 6 -4\r\n\r\n\x00\xff\r\n", Value(b"\r\n\x00\xff\r\n", -4)),
]

OTHER_SPELLINGS: list[tuple[bytes, Command]] = [
    # the first byte decides
    (b"version\r\n", Version(NO_OPAQUE)),
    (b"v 5\r\n", Version(5)),
    (b"vfoo 6\r\n", Version(6)),
    (b"values 6\r\n", Version(6)),
    (b"version\t1\r\n", Version(NO_OPAQUE)),
    (b"version 5 and more\r\n", Version(5)),
    (b"q\r\n", Quit()),
    (b"queue 1\r\n", Quit()),
    (b"quit now please\r\n", Quit()),
    # the second token of stats is the item
    (b"stats\r\n", Stats("", NO_OPAQUE)),
    (b"stats 1\r\n", Stats("1", NO_OPAQUE)),
    (b"stats help\r\n", Stats("help", NO_OPAQUE)),
    (b"stats help 8 9\r\n", Stats("help", 8)),
    # spaces at the end do not count, a line feed alone ends nothing, tabs are ordinary
    (b"version 5   \r\n", Version(5)),
    (b"stats   \r\n", Stats("", NO_OPAQUE)),
    (b"put t 0 1 0 5 6 \r\nx", Put("t", 0, b"x", 0, 6, 5)),
    (b"stats a\nb 3\r\n", Stats("a\nb", 3)),
    (b"stats a\r\r\n", Stats("a\r", NO_OPAQUE)),
    (b"stats a\tb 3\r\n", Stats("a\tb", 3)),
    # a doubled space makes an empty token
    (b"get  g 0 0 10 5 7\r\n", Get("", "g", 0, 0, 10, 5)),
    # numbers with signs and zeros
    (b"version +5\r\n", Version(5)),
    (b"version -0\r\n", Version(0)),
    (b"version 000\r\n", Version(0)),
    (b"version -" + b"0" * 5000 + b"5\r\n", Version(-5)),
    (b"put t +0 +1 -0 005 +6\r\nx", Put("t", 0, b"x", 0, 6, 5)),
    # words behind what is needed
    (b"get t g 0 0 10 5 more words\r\n", Get("t", "g", 0, 0, 10, 5)),
    (b"offset t g 0 0 5 nearest\r\n", GetOffset("t", "g", 0, 0, 5)),
    (b"offset t g 0 0 5 boundary more\r\n", GetOffset("t", "g", 0, 0, 5, "boundary")),
    (b"offset t g 0 0 5 more boundary\r\n", GetOffset("t", "g", 0, 0, 5)),
    # hexadecimal in capitals
    (b"transaction XID:4660:01FF:A0:uniq s END 10\r\n", TransactionCommand(XA, "s", "END", 10)),
    (b"transaction XID:+4660:01ff:a0:uniq s END 10\r\n", TransactionCommand(XA, "s", "END", 10)),
]


def shown(value: object) -> str:
    return repr(value)[:60]


@in_one_test("stream, command", COMMANDS + OTHER_SPELLINGS)
class TestCommandsDecode:
    def test_whole(self, stream: bytes, command: Command) -> None:
        decoder = CommandDecoder()
        assert_same(feed(decoder, [stream]), [command])
        assert decoder.pending_bytes == 0

    def test_byte_by_byte(self, stream: bytes, command: Command) -> None:
        decoder = CommandDecoder()
        assert_same(feed(decoder, byte_by_byte(stream)), [command])
        assert decoder.pending_bytes == 0

    def test_with_trailing_bytes(self, stream: bytes, command: Command) -> None:
        decoder = CommandDecoder()
        assert_same(feed(decoder, [stream + TRAILING]), [command, Version(4711)])
        assert decoder.pending_bytes == len(b"result 200 0")

    def test_nothing_before_the_last_byte(self, stream: bytes, command: Command) -> None:
        decoder = CommandDecoder()
        assert feed(decoder, [stream[:-1]]) == []
        assert decoder.pending_bytes <= len(stream) - 1
        assert_same(feed(decoder, [stream[-1:]]), [command])


@pytest.mark.parametrize(("stream", "reply"), REPLIES, ids=shown)
class TestRepliesDecode:
    def test_whole(self, stream: bytes, reply: Reply) -> None:
        assert_same(feed(ReplyDecoder(), [stream]), [reply])

    def test_byte_by_byte(self, stream: bytes, reply: Reply) -> None:
        assert_same(feed(ReplyDecoder(), byte_by_byte(stream)), [reply])

    def test_with_trailing_bytes(self, stream: bytes, reply: Reply) -> None:
        decoder = ReplyDecoder()
        assert_same(feed(decoder, [stream + b"result 200 2 5\r\nokval"]), [reply, Result(200, "ok", 5)])
        assert decoder.pending_bytes == len(b"val")


@in_one_test("stream, item", COMMANDS + REPLIES)
def test_encode_gives_exactly_these_bytes(stream: bytes, item: Command | Reply) -> None:
    assert encode(item) == stream


def test_all_at_once_and_in_every_pair_of_chunks() -> None:
    stream = b"".join(stream for stream, _ in COMMANDS)
    commands = [command for _, command in COMMANDS]
    for cut in range(len(stream) + 1):
        assert feed(CommandDecoder(), [stream[:cut], stream[cut:]]) == commands


def test_chunks_that_nobody_looked_at_in_between() -> None:
    decoder = CommandDecoder()
    for chunk in byte_by_byte(b"".join(stream for stream, _ in COMMANDS)):
        decoder.receive_data(chunk)
    assert take(decoder) == [command for _, command in COMMANDS]


def test_any_kind_of_buffer_is_taken_and_copied() -> None:
    for kind in (bytes, bytearray, memoryview):
        decoder = CommandDecoder()
        chunk = kind(bytearray(b"put t 0 5 0 1 2\r\nhello"))
        decoder.receive_data(chunk)
        if isinstance(chunk, bytearray):
            chunk[:] = b"?" * len(chunk)
        (put,) = take(decoder)
        assert put == Put("t", 0, b"hello", 0, 2, 1)
        assert type(put.body) is bytes


def test_data_is_another_word_for_value_in_replies_only() -> None:
    assert feed(ReplyDecoder(), [b"data 3 1\r\nabc"]) == [Value(b"abc", 1)]


def test_the_line_of_a_value_alone() -> None:
    assert encode_value_line(6, -4) + b"sixxxx" == encode(Value(b"sixxxx", -4))


def assert_same(taken: list[object], expected: list[object]) -> None:
    """Named tuples of different kinds can be equal, so the kinds are compared too."""
    assert taken == expected
    assert [type(item) for item in taken] == [type(item) for item in expected]
