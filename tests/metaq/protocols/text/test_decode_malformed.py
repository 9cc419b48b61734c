"""Lines that close the connection: the rule is named, nothing comes after, however the bytes arrive."""

from __future__ import annotations

import pytest
from examples import in_one_test
from text_protocol import TRAILING, byte_by_byte, feed

from metaq.errors import ProtocolError
from metaq.protocols.text.commands import Version
from metaq.protocols.text.decode import CommandDecoder, ReplyDecoder

COMMANDS: list[tuple[bytes, str]] = [
    # no command word
    (b"", "command word"),
    (b" ", "command word"),
    (b"   ", "command word"),
    (b" version 1", "command word"),
    (b"\tversion 1", "unknown command"),
    (b"VERSION 1", "unknown command"),
    (b"Put t 0 0 0 1", "unknown command"),
    (b"puts t 0 0 0 1", "unknown command"),
    (b"p", "unknown command"),
    (b"gets t g 0 0 5 1", "unknown command"),
    (b"stat 1", "unknown command"),
    (b"offsets t g 0 0 5", "unknown command"),
    (b"transactions null s END 1", "unknown command"),
    (b"\xff\xfe", "unknown command"),
    (b"delete t 5", "unknown command"),
    # replies
    (b"result 200 0 1", "reply"),
    (b"value 0 1", "reply"),
    (b"value", "reply"),
    (b"data 0 1", "reply"),
    # token counts
    (b"put t 0 0 0", "put with 5 tokens"),
    (b"put t 0 0 0 -1 TX:s:1 5 6", "put with 9 tokens"),
    (b"get t g 0 0 10", "get with 6 tokens"),
    (b"offset t g 0 0", "offset with 5 tokens"),
    (b"sync t 0 0 0 5", "sync with 6 tokens"),
    (b"sync t 0 0 0 7 -1 5 6", "sync with 9 tokens"),
    (b"transaction null s RECOVER", "transaction with 4 tokens"),
    (b"transaction null s RECOVER 1 u 5 6", "transaction with 8 tokens"),
    (b"mput t 0 0 1", "mput with 5 tokens"),
    (b"mput t 0 0 1 TX:s:1 5 6", "mput with 8 tokens"),
    (b"fget t g 0 0 10 a", "fget with 7 tokens"),
    (b"fget t g 0 0 10 a 5 6", "fget with 9 tokens"),
    (b"fgets t g 0 0 10 a 5", "unknown command"),
    (b"fget t g 0 0 10 \xff 5", "message types"),
    (b"fget t g 0 0 x a 5", "maximal size"),
    (b"fget t g 0 9223372036854775808 10 a 5", "offset"),
    (b"fetch 2.1 t g 0 0 10 5", "fetch with 8 tokens: expected 9 or more"),
    (b"fetch 2.1 t g 0 0 10 5 x", "start time"),
    (b"fetch 2.1 t g 0 x 10 5 6", "offset"),
    (b"messageType 2.1 g t 5 6", "messageType with 6 tokens: expected 7 or more"),
    (b"messageType 2.1 g t 5 x 0", "start time"),
    (b"messageType 2.1 g t 5 6 -1", "length"),
    (b"messagetype 2.1 g t 5 6 0", "unknown command"),
    (b"decide q 1 0", "decide with 4 tokens"),
    (b"decide q 1 0 5 6", "expected contents, not"),
    (b"decide q 1 0 contents 5 6", "decide with 7 tokens"),
    # numbers: not a number, an empty one, out of range, and what Python alone would accept
    (b"version x", "opaque"),
    (b"version  5", "opaque"),
    (b"version 1_0", "opaque"),
    (b"version \t5", "opaque"),
    (b"version 5\t", "opaque"),
    (b"version 5.0", "opaque"),
    (b"version 0x5", "opaque"),
    (b"version +-5", "opaque"),
    (b"version +", "opaque"),
    (b"version " + b"0" * 60_000 + b"x", "opaque"),
    (b"version \xd9\xa3", "opaque"),
    (b"version 2147483648", "opaque"),
    (b"version -2147483649", "opaque"),
    (b"version " + b"9" * 5000, "opaque"),
    (b"stats  4294967296", "opaque"),
    (b"stats help x", "opaque"),
    (b"get t g 0 9223372036854775808 10 5", "offset"),
    (b"get t g 0 -9223372036854775809 10 5", "offset"),
    (b"get t g 0 0 2147483648 5", "maximal size"),
    (b"get t g 2147483648 0 5 5", "partition"),
    (b"offset t g 0 9223372036854775808 5", "offset"),
    (b"put t 2147483648 0 0 1 5", "partition"),
    (b"put t x 0 0 1 5", "partition"),
    (b"put t 0 0 2147483648 1 5", "flag"),
    (b"put t 0 0 0 2147483648 5", "checksum"),
    (b"put t 0 0 0 -2147483649 5", "checksum"),
    (b"put t 0 0 0 1 2147483648", "opaque"),
    (b"put t 0 0 0 1 -2147483649", "opaque"),
    (b"put t 0 0 0 1_0 5", "checksum"),
    (b"put t 0 0 0 1 1_0", "opaque"),
    (b"put t 0 0 0 1 --5", "opaque"),
    (b"put t 0 0 0 1 -", "opaque"),
    (b"put t 0 0 0  5", "transaction key"),
    (b"sync t 0 0 0 9223372036854775808 5", "message id"),
    (b"decide q 9223372036854775808 0 5", "batch id"),
    # lengths
    (b"put t 0 -1 0 1 5", "length"),
    (b"put t 0 -1 0 5", "length"),
    (b"put t 0 2147483648 0 1 5", "length"),
    (b"sync t 0 -5 0 7 5", "length"),
    (b"mput t 0 -1 1 5", "length"),
    (b"decide q 1 -1 5", "length"),
    (b"mput t 0 0 0 5", "count"),
    (b"mput t 0 0 -1 5", "count"),
    # token 6 of a put that starts neither with a digit nor with a dash is a transaction key
    (b"put t 0 0 0 +5 6", "transaction key"),
    (b"put t 0 0 0 null 6", "transaction key"),
    (b"put t 0 0 0 TX:s:1 -1 6", "checksum"),
    (b"put t 0 0 0 -1 null 6", "transaction key"),
    # transaction keys and types
    (b"transaction BAD:1 s BEGIN 5", "transaction key"),
    (b"transaction TX:1 s BEGIN 5", "transaction key"),
    (b"transaction TX::1 s BEGIN 5", "transaction key"),
    (b"transaction TX:s:99999999999 s BEGIN 5", "transaction key"),
    (b"transaction TX:s:1:2 s BEGIN 5", "transaction key"),
    (b"transaction tx:s:1 s BEGIN 5", "transaction key"),
    (b"transaction XID:1:0:0a:u s BEGIN 5", "transaction key"),
    (b"transaction XID:1:0g:0a:u s BEGIN 5", "transaction key"),
    (b"transaction XID:1:0a\t0b:0a:u s BEGIN 5", "transaction key"),
    (b"transaction XID:1:0a:0b s BEGIN 5", "transaction key"),
    (b"transaction XID:1:0a:0b: s BEGIN 5", "transaction key"),
    (b"transaction XID:1:0a:0b:u:v s BEGIN 5", "transaction key"),
    (b"transaction XID:2147483648:0a:0b:u s BEGIN 5", "transaction key"),
    (b"transaction  s BEGIN 5", "transaction key"),
    (b"transaction NULL s RECOVER 5", "transaction key"),
    (b"transaction TX:s:1 s begin 5", "transaction type"),
    (b"transaction TX:s:1 s FOO 5", "transaction type"),
    (b"transaction TX:s:1 s BEGIN  5", "unique qualifier"),
    (b"transaction TX:s:1 s BEGIN 2147483648 5", "timeout"),
    (b"transaction TX:s:1 s BEGIN uniq 5 5", "timeout"),
    # names
    (b"put \xff 0 0 0 1 5", "UTF-8"),
    (b"get t \xc3\x28 0 0 10 5", "UTF-8"),
    (b"stats \xff", "UTF-8"),
    (b"decide  1 0 5", "query id"),
]

DECISIONS = [b"TX:s:1\r\n", b"\r\n", b"null", b"TX:s:1\nTX:s:2", b"XID:1:0a:0b:u TX:s:1", b"\xff"]

REPLIES: list[tuple[bytes, str]] = [
    (b"", "a reply must be"),
    (b"version 1", "a reply must be"),
    (b"result", "a reply must be"),
    (b"RESULT 200 0 1", "a reply must be"),
    (b"values 0 1", "a reply must be"),
    (b" result 200 0 1", "a reply must be"),
    (b"result 200 0", "result with"),
    (b"result 200 0 1 2", "result with"),
    (b"value 0", "value with"),
    (b"value 0 1 2", "value with"),
    (b"value -1 5", "length"),
    (b"value 2147483648 5", "length"),
    (b"value 0 2147483648", "opaque"),
    (b"result 200 -1 5", "length"),
    (b"result x 0 5", "code"),
    (b"result 2147483648 0 5", "code"),
    (b"result 200 0 x", "opaque"),
    (b"result 200 1_0 5", "length"),
    (b"result " + b"0" * 200 + b" 0 5", "too long"),
]


@in_one_test("line, rule", COMMANDS)
def test_a_wrong_command_line_ends_the_stream(line: bytes, rule: str) -> None:
    decoder = CommandDecoder()
    decoder.receive_data(b"version 1\r\n" + line + b"\r\n" + TRAILING)
    assert decoder.next_command() == Version(1)
    with pytest.raises(ProtocolError, match=rule) as first:
        decoder.next_command()
    assert first.value.line == line[:200]
    decoder.receive_data(b"version 2\r\n")
    with pytest.raises(ProtocolError) as again:
        decoder.next_command()
    assert again.value is first.value
    assert decoder.pending_bytes == 0


@in_one_test("line, rule", COMMANDS)
def test_a_wrong_command_line_byte_by_byte(line: bytes, rule: str) -> None:
    assert feed(CommandDecoder(), byte_by_byte(line + b"\r\n" + TRAILING)) == [ProtocolError]


@pytest.mark.parametrize("body", DECISIONS, ids=repr)
def test_a_decision_about_something_that_is_no_branch(body: bytes) -> None:
    decoder = CommandDecoder()
    decoder.receive_data(b"decide q 1 %d 5\r\n" % len(body) + body + TRAILING)
    with pytest.raises(ProtocolError, match="branches"):
        decoder.next_command()
    with pytest.raises(ProtocolError, match="branches"):
        decoder.next_command()


@pytest.mark.parametrize("own", [b"1", b"0,0", b"-1", b"0,", b"x", b"0,9999999999"], ids=repr)
def test_a_decision_about_own_branches_that_are_not_in_the_list(own: bytes) -> None:
    body = own + b"\r\n{}\r\nXID:1:61:62:q"
    decoder = CommandDecoder()
    decoder.receive_data(b"decide q 1 %d contents 5\r\n" % len(body) + body + TRAILING)
    with pytest.raises(ProtocolError, match="branches"):
        decoder.next_command()


@pytest.mark.parametrize(("line", "rule"), REPLIES, ids=repr)
def test_a_wrong_reply_line_ends_the_stream(line: bytes, rule: str) -> None:
    decoder = ReplyDecoder()
    decoder.receive_data(line + b"\r\nresult 200 0 1\r\n")
    with pytest.raises(ProtocolError, match=rule) as first:
        decoder.next_reply()
    assert first.value.line == line[:200]
    with pytest.raises(ProtocolError):
        decoder.next_reply()
    assert feed(ReplyDecoder(), byte_by_byte(line + b"\r\nresult 200 0 1\r\n")) == [ProtocolError]
