"""Reading by message type: the broker in memory, the real one, and one without the extension give the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from fix_broker import RunningBroker, launch_in
from fix_client import TIMEOUTS, memory_session

from metaq.backends.metaq.fetch import AtEnd, Moved
from metaq.backends.metaq.filtered import Filtered, fetch_types, messages_of_types
from metaq.backends.metaq.puts import put
from metaq.backends.metaq.session import Session
from metaq.errors import BrokerError, CorruptFrame, ProtocolError
from metaq.formats.frames import encode_body, encode_frame, walk
from metaq.formats.message_types import Selection, decode_filtered, encode_types, is_message_type, select
from metaq.model import Message
from metaq.protocols.text.commands import Result, Value
from metaq.protocols.text.extensions import EXT_BOUNDARY, EXT_FILTER
from metaq.testing.memory import MemoryBroker

SEGMENT_BYTES, TRANSFER_BYTES = 4096, 3000
NUMBERS = count()


@pytest.fixture(scope="module")
def real_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("filtered")
    broker = launch_in(folder, maxSegmentSize=SEGMENT_BYTES, maxTransferSize=TRANSFER_BYTES)
    yield broker
    broker.end()


@pytest.fixture
def topic() -> str:
    return f"t{next(NUMBERS)}"


@pytest.fixture(params=["memory", "memory without fget", pytest.param("real", marks=pytest.mark.process)])
def session(request: pytest.FixtureRequest, topic: str) -> Iterator[Session]:
    if request.param == "real":
        session = Session.connect(request.getfixturevalue("real_broker").address, TIMEOUTS)
    else:
        offered = frozenset({EXT_BOUNDARY, EXT_FILTER} if request.param == "memory" else {EXT_BOUNDARY})
        limits = {"segment_bytes_max": SEGMENT_BYTES, "transfer_bytes_max": TRANSFER_BYTES}
        session = memory_session(MemoryBroker({topic: 1}, extensions=offered, **limits))
    yield session
    session.close()


def put_all(session: Session, topic: str, messages: list[Message]) -> list[int]:
    return [put(session, topic, 0, message).offset for message in messages]


def read(session: Session, topic: str, *types: str, max_bytes: int = 1 << 20) -> list[tuple[int, Message]]:
    frames = messages_of_types(session, topic, 0, 0, types, max_bytes)
    return [(frame.offset, frame.message) for frame in frames]


class TestOnEveryBroker:
    @pytest.mark.parametrize("max_bytes", [1, 50, 1000, 1 << 20])
    def test_exactly_the_messages_of_the_types_come_each_with_its_offset(
        self, session: Session, topic: str, max_bytes: int
    ) -> None:
        kinds = ["paid", "open", None, "", "no type!", "paid2", "PAID"]
        messages = [Message(b"%d" % n * (n % 50), kinds[n % 7]) for n in range(200)]
        offsets = put_all(session, topic, messages)
        everything = list(zip(offsets, messages, strict=True))
        for wanted in (("paid",), ("open", "paid2"), ("absent",), ("paid", "paid")):
            expected = [(offset, message) for offset, message in everything if message.attribute in wanted]
            assert read(session, topic, *wanted, max_bytes=max_bytes) == expected

    def test_nothing_kept_still_gets_on(self, session: Session, topic: str) -> None:
        put_all(session, topic, [Message(b"x" * 100, "a")] * 5)
        assert fetch_types(session, topic, 0, 0, ["b"]) == Filtered([], 5 * 125)
        assert isinstance(fetch_types(session, topic, 0, 5 * 125, ["b"]), AtEnd)

    @pytest.mark.parametrize("max_bytes", [1, 1000])
    def test_a_message_longer_than_any_reply_comes_whole(self, session: Session, topic: str, max_bytes: int) -> None:
        large = Message(bytes(range(256)) * 80, "large")
        offsets = put_all(session, topic, [Message(b"1", "s"), large, Message(b"2", "s"), large])
        assert read(session, topic, "large", max_bytes=max_bytes) == [(offsets[1], large), (offsets[3], large)]
        assert [offset for offset, _ in read(session, topic, "s", max_bytes=max_bytes)] == [offsets[0], offsets[2]]

    def test_ends_and_moves_as_for_a_get(self, session: Session, topic: str) -> None:
        assert isinstance(fetch_types(session, topic, 0, 0, ["a"]), AtEnd), "never written"
        put_all(session, topic, [Message(b"x", "a")])
        assert fetch_types(session, topic, 0, -1, ["a"]) == Moved(0)
        assert fetch_types(session, topic, 0, 2**63 - 1, ["a"]) == Moved(26)

    @pytest.mark.parametrize("name", ["", "a b", "a-b", "a,b", "ü", "a\n", "x" * 201])
    def test_what_is_no_type_is_refused_before_it_is_sent(self, session: Session, topic: str, name: str) -> None:
        with pytest.raises(ValueError, match=r"message type .*letters, digits and underscores"):
            fetch_types(session, topic, 0, 0, ["good", name])
        with pytest.raises(ValueError, match="no message type"):
            fetch_types(session, topic, 0, 0, [])

    def test_zero_bytes_are_a_refusal(self, session: Session, topic: str) -> None:
        put_all(session, topic, [Message(b"x", "a")])
        with pytest.raises(BrokerError) as refusal:
            fetch_types(session, topic, 0, 0, ["a"], max_bytes=0)
        assert refusal.value.code == 400


def frame(attribute: str | None, payload: bytes = b"") -> bytes:
    return encode_frame(7, *encode_body(Message(payload, attribute)))


A, B = frame("a", b"1"), frame("b", b"22")


class TestSelection:
    def test_a_cut_tail_is_left_for_the_next_time(self) -> None:
        for cut in range(len(A), len(A + B)):
            assert select((A + B)[:cut], 100, {b"a", b"b"}) == Selection(100 + len(A), [(100, A)])

    def test_it_ends_at_damage_wherever_that_is(self) -> None:
        for position in range(len(B)):
            damaged = bytearray(A + B + A)
            damaged[len(A) + position] ^= 0x40
            found = select(bytes(damaged), 0, {b"a"})
            if 8 <= position < 20:  # the id and the flag are not covered by the checksum
                assert found == Selection(len(A + B + A), [(0, A), (len(A + B), A)])
            else:
                assert found.next_offset == len(A)
                assert found.kept == [(0, A)]

    @pytest.mark.parametrize("body", [b"", b"\0\0\0", b"\0\0\0\x02a", b"\xff\xff\xff\xffa", b"\x7f\xff\xff\xffa"])
    def test_a_body_that_cannot_have_an_attribute_has_no_type(self, body: bytes) -> None:
        run = encode_frame(7, 1, body) + A
        assert select(run, 0, {b"a", b""}).kept == [(len(run) - len(A), A)]

    def test_what_is_a_type(self) -> None:
        assert all(map(is_message_type, ["a", "Z", "0", "_", "paid_2", "x" * 200]))
        assert encode_types(["a", "b", "a"]) == {b"a", b"b"}

    def test_a_selection_comes_back(self) -> None:
        for kept in ([], [(5, A)], [(5, A), (9999999999, B)]):
            next_offset, frames = decode_filtered(Selection(2**62, kept).encode())
            assert next_offset == 2**62
            assert frames == [each for offset, data in kept for each in walk(data, offset)]

    def test_every_cut_of_a_reply_is_noticed(self) -> None:
        whole = Selection(99, [(5, A), (6, B)]).encode()
        borders = {8, 16 + len(A)}
        for cut in range(len(whole)):
            if cut in borders:
                decode_filtered(whole[:cut])
            else:
                with pytest.raises(ProtocolError, match="filtered value"):
                    decode_filtered(whole[:cut])


class TestBrokersThatMakeNoSense:
    @pytest.mark.parametrize(
        "data",
        [b"", b"1234567", Selection(0, []).encode(), Selection(30, [(0, A)]).encode()[:-1]],
        ids=["empty", "cut number", "no progress", "cut frame"],
    )
    def test_the_session_closes(self, data: bytes) -> None:
        session = self.answering(Value(data, 0))
        with pytest.raises(ProtocolError):
            fetch_types(session, "t", 0, 0, ["a"])
        assert session.closed

    def test_a_damaged_frame_is_named(self) -> None:
        damaged = A[:-1] + b"?"
        with pytest.raises(CorruptFrame):
            fetch_types(self.answering(Value(Selection(99, [(0, damaged)]).encode(), 0)), "t", 0, 0, ["a"])

    def test_refusals_are_errors_and_leave_the_session_open(self) -> None:
        session = self.answering(Result(500, "damaged", 0))
        with pytest.raises(BrokerError, match="get of types in t partition 0 at offset 0"):
            fetch_types(session, "t", 0, 0, ["a"])
        assert not session.closed

    @staticmethod
    def answering(reply: Value | Result) -> Session:
        broker = MemoryBroker({"t": 1})
        session = memory_session(broker)
        assert EXT_FILTER in session.extensions
        broker.answer = lambda command: reply._replace(opaque=command.opaque)  # type: ignore[method-assign,union-attr]
        return session


def test_damage_in_the_middle_is_an_error_without_the_extension_too() -> None:
    broker = MemoryBroker({"t": 1}, extensions=frozenset())
    broker.partition("t", 0).append(A + A[:-1] + b"?" + A)
    session = memory_session(broker)
    assert fetch_types(session, "t", 0, 0, ["a"]) == Filtered(list(walk(A)), len(A))
    with pytest.raises(CorruptFrame, match="t partition 0"):
        fetch_types(session, "t", 0, len(A), ["a"])
