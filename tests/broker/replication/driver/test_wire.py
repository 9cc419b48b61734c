"""Messages between members become bytes and come back equal; what is no message is refused."""

from __future__ import annotations

import json

import pytest
from metaq_broker.log.streams.facts import EpochStart, StreamFacts, StreamOrigin
from metaq_broker.log.streams.stream import StreamBytes
from metaq_broker.replication.driver.wire import MessageUnreadable, decode_message, encode_message
from metaq_broker.replication.pair.messages import (
    BeginStreams,
    ElectYourself,
    EndsMoved,
    PairHello,
    PairMessage,
    PairRefused,
    PairWelcome,
    RemoveStreams,
    RunStored,
    StreamEnds,
    StreamRun,
    StreamsBegun,
    StreamStart,
)
from metaq_broker.replication.pair.record import PairMemberEntry, PairRecord

RECORD = PairRecord(
    3, "a", frozenset({"a", "b"}), {"a": PairMemberEntry("h:1", "4-x"), "b": PairMemberEntry("h:2", "1-y")}
)
ORIGIN = StreamOrigin("t-0", "0" * 32, 40, 2)
EPOCHS = (EpochStart(1, 0), EpochStart(3, 70))

MESSAGES = [
    PairHello(3, "a", RECORD, 17),
    PairRefused(9),
    PairWelcome(3, "b", "1-y", {"t-0": StreamFacts(ORIGIN, 90, EPOCHS, 12345)}, False),
    BeginStreams(3, {"t-0": StreamStart(ORIGIN, EPOCHS, 80), "u-1": StreamStart(ORIGIN, (), None)}, True),
    StreamsBegun(3, {"t-0": 80}),
    RemoveStreams(3, ("t-0", "u-1")),
    StreamRun(3, "t-0", 80, 87, StreamBytes(80, 40, b"\n\x00\xff{}\r\n")),
    StreamRun(3, "t-0", 80, 80, StreamBytes(80, 80, b"")),
    StreamRun(3, "t-0", 80, 83, StreamBytes(80, 80, b"bad", 2)),
    RunStored(3, "t-0", 87),
    EndsMoved(3, {"t-0": StreamEnds(40, 87)}),
    ElectYourself(3),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back(message: PairMessage) -> None:
    assert decode_message(b"".join(encode_message(message))) == message


def test_the_form() -> None:
    assert encode_message(RunStored(3, "t-0", 87)) == [b'{"kind":"RunStored","epoch":3,"stream":"t-0","end":87}']
    run = encode_message(StreamRun(3, "t-0", 80, 82, StreamBytes(80, 40, b"ab")))
    assert run == [b'{"kind":"StreamRun","epoch":3,"stream":"t-0","offset":80,"end":82,"run":40}\n', b"ab"]


def test_a_later_version_may_add_fields_and_an_older_one_may_lack_some() -> None:
    fields = json.loads(b"".join(encode_message(MESSAGES[2])))
    del fields["joins"]
    found = decode_message(json.dumps(fields | {"new": 1}).encode())
    assert isinstance(found, PairWelcome)
    assert found.joins


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'"x"',
        b"\xff",
        b'{"kind":"Nothing"}',
        b'{"kind":"RunStored"}',
        b'{"kind":"RunStored","epoch":"3","stream":"t","end":1}',
        b'{"kind":"RunStored","epoch":true,"stream":"t","end":1}',
        b'{"kind":"StreamRun","epoch":3,"stream":"t","offset":1,"end":2}\nab',
        b'{"kind":"EndsMoved","epoch":3,"streams":{"t":[1]}}',
        b'{"kind":"EndsMoved","epoch":3,"streams":[1]}',
        b'{"kind":"PairHello","epoch":3,"master":"a","record":7,"version":1}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_message(content: bytes) -> None:
    with pytest.raises(MessageUnreadable):
        decode_message(content)
