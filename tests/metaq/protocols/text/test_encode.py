"""What cannot be written is refused with the field's name, before any byte leaves."""

from __future__ import annotations

import pytest
from examples import in_one_test

from metaq.model import LocalTransactionId, Xid
from metaq.protocols.text.commands import (
    Command,
    Decide,
    Fetch,
    Get,
    GetOffset,
    Oversized,
    Put,
    PutBatch,
    Reply,
    ReportTypes,
    Result,
    Stats,
    Sync,
    TransactionCommand,
    Value,
    Version,
)
from metaq.protocols.text.decode import LINE_BYTES_MAX
from metaq.protocols.text.encode import TOKEN_BYTES_MAX, encode, encode_value_line

TOO_BIG, TOO_SMALL = 2**31, -(2**31) - 1
XA = Xid(1, b"a", b"b", "u")

REFUSED: list[tuple[Command | Reply, str]] = [
    (Put("", 0, b"", 0, 1), "topic"),
    (Put("a b", 0, b"", 0, 1), "topic"),
    (Put("a\r\nquit", 0, b"", 0, 1), "topic"),
    (Put("a\nb", 0, b"", 0, 1), "topic"),
    (Put("a\rb", 0, b"", 0, 1), "topic"),
    (Put("t" * (TOKEN_BYTES_MAX + 1), 0, b"", 0, 1), "topic"),
    (Put("\ud800", 0, b"", 0, 1), "topic"),
    (Put("t", TOO_BIG, b"", 0, 1), "partition"),
    (Put("t", 0, b"", TOO_SMALL, 1), "flag"),
    (Put("t", 0, b"", 0, TOO_BIG), "opaque"),
    (Put("t", 0, b"", 0, 1, TOO_BIG), "checksum"),
    (Put("t", 0, b"", 0, 1, -1, LocalTransactionId("a:b", 1)), "transaction key"),
    (Put("t", 0, b"", 0, 1, -1, LocalTransactionId("a b", 1)), "transaction key"),
    (Put("t", 0, b"", 0, 1, -1, LocalTransactionId("", 1)), "transaction key"),
    (Put("t", 0, b"", 0, 1, -1, LocalTransactionId("s", TOO_BIG)), "transaction key"),
    (Put("t", 0, b"", 0, 1, -1, Xid(1, b"a", b"b", "")), "transaction key"),
    (Put("t", 0, b"", 0, 1, -1, Xid(1, b"a", b"b", "u:v")), "transaction key"),
    (Put("t", 0, b"", 0, 1, -1, Xid(1, b"a" * TOKEN_BYTES_MAX, b"b", "u")), "transaction key"),
    (PutBatch("a b", 0, b"", 1, 1), "topic"),
    (PutBatch("t", 0, b"", 0, 1), "count"),
    (PutBatch("t", TOO_SMALL, b"", 1, 1), "partition"),
    (Sync("", 0, b"", 0, 7, 1), "topic"),
    (Sync("t", 0, b"", 0, 2**63, 1), "message id"),
    (Sync("t", 0, b"", 0, 7, 1, TOO_SMALL), "checksum"),
    (Get("t", "", 0, 0, 1, 1), "group"),
    (Get("t", "g g", 0, 0, 1, 1), "group"),
    (Get("t", "g", 0, 2**63, 1, 1), "offset"),
    (Get("t", "g", 0, -(2**63) - 1, 1, 1), "offset"),
    (Get("t", "g", 0, 0, TOO_BIG, 1), "size"),
    (GetOffset("t", "g", 0, 2**63, 1), "offset"),
    (GetOffset("t", "g", 0, 0, TOO_BIG), "opaque"),
    (GetOffset("t", "g", 0, 0, 1, "nearest"), "offset mode"),  # type: ignore[arg-type]
    (Fetch("", "t", "g", 0, 0, 1, 1, 0), "version"),
    (Fetch("2.1", "t", "g", 0, 0, 1, 1, 2**63), "start time"),
    (Fetch("2.1", "t", "g", 0, 0, TOO_BIG, 1, 0), "size"),
    (ReportTypes("2.1", "g g", "t", 1, 0, ("a",)), "group"),
    (ReportTypes("2.1", "g", "t", 1, 0, ("a", " ")), "message type ' '"),
    (ReportTypes("2.1", "g", "t", 1, 0, ("a\x04b",)), "without byte 0x04"),
    (Stats("a b", 1), "item"),
    (Stats("", TOO_BIG), "opaque"),
    (Version(TOO_SMALL), "opaque"),
    (TransactionCommand(XA, "", "BEGIN", 1), "session id"),
    (TransactionCommand(XA, "a b", "BEGIN", 1), "session id"),
    (TransactionCommand(XA, "s", "COMMIT", 1), "transaction type"),  # type: ignore[arg-type]
    (TransactionCommand(XA, "s", "BEGIN", 1, -1), "timeout"),
    (TransactionCommand(XA, "s", "BEGIN", 1, TOO_BIG), "timeout"),
    (TransactionCommand(XA, "s", "BEGIN", 1, 5, ""), "unique qualifier"),
    (TransactionCommand(None, "s", "RECOVER", 1, None, "u v"), "unique qualifier"),
    (TransactionCommand(None, "s", "RECOVER", 1, None, "123"), "unique qualifier"),
    (TransactionCommand(XA, "s", "BEGIN", TOO_BIG), "opaque"),
    (Decide("", 1, (), 1), "query id"),
    (Decide("q", 2**63, (), 1), "batch id"),
    (Decide("q", 1, (XA,), 1, None, (0,)), "with contents"),
    (Decide("q", 1, (XA,), 1, "", (1,)), "positions in the branches"),
    (Decide("q", 1, (XA,), 1, "two\nlines", (0,)), "one line"),
    (Decide("q", 1, (XA, Xid(1, b"a", b"b", "\r\n")), 1), "transaction key"),
    (Result(TOO_BIG, "", 1), "code"),
    (Result(200, "", TOO_SMALL), "opaque"),
    (Value(b"", TOO_BIG), "opaque"),
]


@in_one_test("item, field", REFUSED)
def test_refused_by_name(item: Command | Reply, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        encode(item)


def test_what_is_no_command_is_a_type_error() -> None:
    for item in (Oversized("put", "t", 0, 9, 8, 1), ("t", 0), "version", None):
        with pytest.raises(TypeError, match="neither a command nor a reply"):
            encode(item)  # type: ignore[arg-type]


def test_the_line_of_a_value_has_limits_too() -> None:
    for total, opaque in ((-1, 0), (TOO_BIG, 0), (0, TOO_BIG)):
        with pytest.raises(ValueError, match=r"total|opaque"):
            encode_value_line(total, opaque)


def test_the_longest_line_that_is_written_can_be_read() -> None:
    name = "t" * TOKEN_BYTES_MAX
    for item in (Get(name, name, 0, -(2**63), 1, 1), TransactionCommand(XA, name, "BEGIN", 1, 5, name)):
        assert encode(item).index(b"\r\n") <= LINE_BYTES_MAX
