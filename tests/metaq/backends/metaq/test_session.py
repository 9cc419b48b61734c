"""The session: replies find their requests, deadlines hold, and a conversation that broke is never gone on with."""

from __future__ import annotations

import pytest
from fix_client import ADDRESS, memory_session, scripted_session

from metaq.backends.metaq.session import OUTSTANDING_MAX, Session, describe
from metaq.errors import BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError
from metaq.model import Buffer, LocalTransactionId
from metaq.net.transport import Timeouts
from metaq.protocols.text.commands import (
    Command,
    Decide,
    Get,
    GetOffset,
    Put,
    PutBatch,
    Quit,
    Result,
    Stats,
    Sync,
    TransactionCommand,
    Value,
    Version,
)
from metaq.testing.manual_clock import ManualClock
from metaq.testing.memory import MemoryBroker
from metaq.testing.scripted import Disconnect, Expect, Refuse, Say, ScriptedTransport


def result(text: bytes, opaque: int, code: int = 200) -> bytes:
    return b"result %d %d %d\r\n%b" % (code, len(text), opaque, text)


def get(offset: int = 0) -> Get:
    return Get("t", "g", 0, offset, 10, 0)


# ---- conversations that go well


def test_each_call_has_a_fresh_opaque() -> None:
    session, transport = scripted_session(
        Expect(b"version 1\r\n"),
        Say(result(b"1.4.6", 1)),
        Expect(b"stats topics 2\r\n"),
        Say(result(b"STATS\r\nEND\r\n", 2)),
    )
    assert session.call(Version(77)) == Result(200, "1.4.6", 1)
    assert session.ask(Stats("topics", 77)) == "STATS\r\nEND\r\n"
    assert transport.finished


def test_requests_posted_together_are_one_write_and_replied_to_one_by_one() -> None:
    session, transport = scripted_session(
        Expect(b"get t g 0 1 10 1\r\nget t g 0 2 10 2\r\n"),
        Say(b"value 3 2\r\ntwo" + result(b"no", 1, 404)),
    )
    first, second = session.post_all([get(1), get(2)])
    assert session.wait(first) == Result(404, "no", 1)
    assert session.wait(second) == Value(b"two", 2)
    assert session.post_all([]) == []
    assert transport.finished


def test_too_many_requests_together_are_refused_before_sending() -> None:
    session, transport = scripted_session()
    with pytest.raises(RuntimeError, match="in flight"):
        session.post_all([get()] * (OUTSTANDING_MAX + 1))
    with pytest.raises(ValueError, match="has no reply"):
        session.post_all([get(), Quit()])
    assert session.quiet
    assert transport.finished


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 1000])
def test_replies_may_come_in_any_order_and_any_chunks(chunk_bytes: int) -> None:
    session, _ = scripted_session(
        *[Expect(b"get t g 0 %d 10 %d\r\n" % (n, n)) for n in (1, 2, 3)],
        Say(b"value 3 3\r\nthr" + result(b"no", 1, 404) + b"value 2 2\r\ntw", chunk_bytes),
    )
    opaques = [session.post(get(offset)) for offset in (1, 2, 3)]
    assert session.outstanding == 3
    assert [session.wait(opaque) for opaque in opaques] == [Result(404, "no", 1), Value(b"tw", 2), Value(b"thr", 3)]
    assert session.outstanding == 0


def test_a_call_while_others_are_under_way_leaves_their_replies_to_them() -> None:
    session, _ = scripted_session(
        Expect(b"get t g 0 0 10 1\r\n"), Expect(b"version 2\r\n"), Say(b"value 1 1\r\nx" + result(b"1.4.6", 2))
    )
    opaque = session.post(get())
    assert session.ask(Version(0)) == "1.4.6"
    assert session.wait(opaque) == Value(b"x", 1)


def test_an_abandoned_reply_is_dropped_whenever_it_comes() -> None:
    session, _ = scripted_session(
        Expect(b"get t g 0 0 10 1\r\nget t g 0 5 10 2\r\nversion 3\r\n"),
        Say(b"value 1 1\r\nx" + b"value 1 2\r\ny" + result(b"1.4.6", 3)),
    )
    first, second = session.post(get()), session.post(get(5))
    session.abandon(second)
    session.abandon(999)
    assert session.ask(Version(0)) == "1.4.6"
    session.abandon(first)  # arrived meanwhile, not collected
    assert session.outstanding == 0
    assert session.quiet


def test_a_refusal_is_a_reply_and_closes_nothing() -> None:
    session, _ = scripted_session(Expect(b"stats x 1\r\n"), Say(result(b"sorry", 1, 503)))
    with pytest.raises(BrokerError) as refused:
        session.ask(Stats("x", 0))
    assert str(refused.value) == f"broker {ADDRESS} refused stats x with 503: sorry"
    assert refused.value.retryable
    assert session.quiet


@pytest.mark.parametrize(
    ("version", "extensions"),
    [(b"1.4.6.3-SNAPSHOT", set()), (b"1.4.6-metaq-spark-0.1;ext=boundary,mput", {"boundary", "mput"})],
)
def test_extensions_are_asked_once_per_connection(version: bytes, extensions: set[str]) -> None:
    session, transport = scripted_session(Expect(b"version 1\r\n"), Say(result(version, 1)))
    assert session.extensions == extensions
    assert session.extensions == extensions
    assert transport.finished


def test_commands_without_reply_are_sent_as_they_are() -> None:
    session, transport = scripted_session(Expect(b"transaction TX:s:1 s END 0\r\nquit\r\n"), Disconnect())
    session.send(TransactionCommand(LocalTransactionId("s", 1), "s", "END", 0))
    session.send(Quit())
    assert session.outstanding == 0
    assert transport.finished


@pytest.mark.parametrize("command", [Quit(), TransactionCommand(LocalTransactionId("s", 1), "s", "END", 0)])
def test_a_command_without_reply_cannot_be_waited_for(command: Command) -> None:
    session, _ = scripted_session()
    with pytest.raises(ValueError, match="has no reply; use send"):
        session.call(command)
    assert not session.closed


def test_what_cannot_be_written_is_refused_before_anything_is_sent() -> None:
    session, _ = scripted_session(Expect(b"version 2\r\n"), Say(result(b"1.4.6", 2)))
    with pytest.raises(ValueError, match="two words"):
        session.call(Get("two words", "g", 0, 0, 10, 0))
    assert session.ask(Version(0)) == "1.4.6"


def test_requests_under_way_are_bounded() -> None:
    session = memory_session(MemoryBroker({}))
    opaques = [session.post(Version(0)) for _ in range(OUTSTANDING_MAX)]
    with pytest.raises(RuntimeError, match=f"{OUTSTANDING_MAX} requests are in flight"):
        session.post(Version(0))
    session.wait(opaques[0])
    session.post(Version(0))
    with pytest.raises(KeyError):
        session.wait(opaques[0])


# ---- conversations that break


def test_a_peer_that_never_answers_hits_the_deadline_of_the_call() -> None:
    session, transport = scripted_session(Expect(b"get t g 0 7 10 1\r\n"), timeouts=Timeouts(request_s=3))
    started = transport.clock.monotonic()
    with pytest.raises(DeadlineExceeded) as late:
        session.call(get(7))
    assert transport.clock.monotonic() - started == pytest.approx(3)
    assert str(late.value) == f"broker {ADDRESS}: no answer to get of t partition 0 at offset 7 within 3 s"
    assert session.closed
    assert repr(session) == f"<Session {ADDRESS} closed: DeadlineExceeded in get of t partition 0 at offset 7>"


class _Dribble:
    """A peer that sends one byte of an endless reply a second."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.sent = clock, iter(b"value 1000 1\r\n" + b"x" * 999)

    def connect_tcp(self, address: object, timeout_s: float) -> _Dribble:
        return self

    def send(self, data: Buffer, timeout_s: float, *, more: bool = False) -> None: ...

    def recv(self, bytes_max: int, timeout_s: float) -> bytes:
        assert timeout_s > 0
        self.clock.advance(min(1.0, timeout_s))
        return bytes([next(self.sent)])

    def readable(self) -> bool:
        return True

    def close(self) -> None: ...


def test_a_peer_that_sends_byte_by_byte_does_not_stretch_the_deadline() -> None:
    clock = ManualClock()
    session = Session.connect(ADDRESS, Timeouts(request_s=20), _Dribble(clock), clock)
    started = clock.monotonic()
    with pytest.raises(DeadlineExceeded, match="within 20 s"):
        session.call(get())
    assert clock.monotonic() - started == pytest.approx(20)


def test_a_deadline_of_one_call_goes_before_that_of_the_session() -> None:
    session, _ = scripted_session(Expect(b"version 1\r\n"))
    with pytest.raises(DeadlineExceeded, match=r"within 0\.5 s"):
        session.call(Version(0), timeout_s=0.5)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "closed the connection without a reply"),
        (b"result 200 5", "closed the connection in the middle of a reply"),
        (b"result 200 5 1\r\nabc", "closed the connection in the middle of a reply"),
    ],
)
def test_an_early_end_differs_from_an_end_within_a_reply(said: bytes, reason: str) -> None:
    session, _ = scripted_session(Expect(b"version 1\r\n"), *([Say(said)] if said else []), Disconnect())
    with pytest.raises(ConnectionFailed, match=f"^broker {ADDRESS}: version failed: the broker {reason}"):
        session.call(Version(0))
    assert session.closed


@pytest.mark.parametrize(
    ("protocol_error", "what"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "reply"),
        (b"value x 1\r\n", "x"),
        (b"result 200 -1 1\r\n", "-1"),
        (b"value 999999999 1\r\n", "limit"),
        (b"result 200 0 2\r\n", "a reply to request 2, which is not in flight"),
        (b"result 200 0 2147483647\r\n", "a reply to request 2147483647, which is not in flight"),
    ],
)
def test_a_malformed_answer_closes_the_session_and_names_the_broker(protocol_error: bytes, what: str) -> None:
    session, _ = scripted_session(Expect(b"version 1\r\n"), Say(protocol_error))
    with pytest.raises(ProtocolError, match=f"^broker {ADDRESS}: .*{what}"):
        session.call(Version(0))
    assert session.closed


def test_the_same_reply_twice_is_a_protocol_error() -> None:
    session, _ = scripted_session(
        Expect(b"version 1\r\n"), Say(result(b"v", 1) * 2), Expect(b"version 2\r\n"), Say(result(b"v", 2))
    )
    session.call(Version(0))
    with pytest.raises(ProtocolError, match="request 1, which is not in flight"):
        session.call(Version(0))


def test_message_bytes_in_place_of_a_text_are_malformed() -> None:
    session, _ = scripted_session(Expect(b"stats x 1\r\n"), Say(b"value 1 1\r\nx"))
    with pytest.raises(ProtocolError, match="message bytes were received as the reply to stats x"):
        session.ask(Stats("x", 0))
    assert session.closed


def test_a_broken_session_is_not_used_again() -> None:
    session, _ = scripted_session(Expect(b"get t g 0 0 10 1\r\nget t g 0 1 10 2\r\n"), Disconnect())
    first, second = session.post(get()), session.post(get(1))
    with pytest.raises(ConnectionFailed):
        session.wait(first)
    for again in (lambda: session.wait(second), lambda: session.post(get()), lambda: session.send(Quit())):
        with pytest.raises(ConnectionFailed, match="this session was given up: ConnectionFailed in get of t"):
            again()


def test_an_interrupted_call_leaves_a_closed_session() -> None:
    session, transport = scripted_session(Expect(b"version 1\r\n"))

    def interrupted(bytes_max: int, timeout_s: float) -> bytes:
        raise KeyboardInterrupt

    transport.streams[0].recv = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        session.call(Version(0))
    assert session.closed


def test_reopening_starts_a_fresh_conversation() -> None:
    transport = ScriptedTransport(
        [
            [Expect(b"version 1\r\n"), Say(result(b"x;ext=mput", 1)), Expect(b"get t g 0 0 10 2\r\n"), Disconnect()],
            [Refuse()],
            [Expect(b"version 3\r\n"), Say(result(b"x", 3))],
        ]
    )
    session = Session.connect(ADDRESS, Timeouts(), transport, transport.clock)
    assert session.extensions == {"mput"}
    with pytest.raises(ConnectionFailed):
        session.call(get())
    with pytest.raises(ConnectionFailed):
        session.reopen()
    assert session.closed
    session.reopen()
    assert session.extensions == frozenset()
    assert transport.streams[0].closed
    assert transport.finished


# ---- what operators read


def test_repr_shows_address_and_state() -> None:
    session, _ = scripted_session(Expect(b"version 1\r\n"), Say(result(b"v", 1)))
    assert repr(session) == f"<Session {ADDRESS} idle>"
    opaque = session.post(Version(0))
    assert repr(session) == f"<Session {ADDRESS} 1 under way>"
    session.wait(opaque)
    session.close()
    session.close("for another reason")
    assert repr(session) == f"<Session {ADDRESS} closed: closed by the caller>"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (Put("t", 1, b"", 0, 0), "put to t partition 1"),
        (PutBatch("t", 1, b"", 1, 0), "put to t partition 1"),
        (get(5), "get of t partition 0 at offset 5"),
        (GetOffset("t", "g", 2, 9, 0), "lookup of offset 9 in t partition 2"),
        (GetOffset("t", "g", 2, 9, 0, "boundary"), "lookup of offset 9 in t partition 2"),
        (GetOffset("t", "g", 2, 9, 0, "timestamp"), "lookup of time 9 in t partition 2"),
        (GetOffset("t", "g", 2, 9, 0, "ordinal"), "lookup of offset 9 in t partition 2"),
        (GetOffset("t", "g", 2, 9, 0, "message"), "lookup of message 9 in t partition 2"),
        (GetOffset("t", "g", 2, 7, 0, "file"), "lookup of the file of t partition 2 at offset 7"),
        (GetOffset("t", "g", 2, 0, 0, "incarnation"), "lookup of the incarnation of t partition 2"),
        (Stats("", 0), "stats"),
        (Stats("topics", 0), "stats topics"),
        (Version(0), "version"),
        (Quit(), "quit"),
        (TransactionCommand(LocalTransactionId("s", 1), "s", "BEGIN", 0), "transaction BEGIN of TX:s:1"),
        (TransactionCommand(None, "s", "RECOVER", 0), "transaction RECOVER"),
        (Decide("q", 4, (), 0), "decision on batch 4 of query q"),
        (Sync("t", 1, b"", 0, 1, 0), "sync of t partition 1"),
    ],
)
def test_commands_are_described_for_people(command: Command, text: str) -> None:
    assert describe(command) == text


def test_little_is_asked_for_until_the_length_of_a_body_is_known() -> None:
    """Memory for a large receipt is made anew each time; a long body comes in few, as each may wait for a lock."""
    head, body = b"value 3000000 1\r\n", b"x" * 3_000_000
    session, transport = scripted_session(
        Expect(b"get t g 0 0 10 1\r\n"),
        *(Say(part) for part in (head[:9], head[9:] + body[:5], body[5:2_999_000], body[2_999_000:])),
    )
    stream, sizes = transport.streams[0], list[int]()
    receive = stream.recv

    def recv(bytes_max: int, timeout_s: float) -> bytes:
        sizes.append(bytes_max)
        return receive(bytes_max, timeout_s)

    stream.recv = recv  # type: ignore[method-assign]
    assert session.call(get()) == Value(body, 1)
    assert sizes[:3] == [64 << 10, 64 << 10, 1 << 20]
    assert max(sizes) == 1 << 20
    assert sizes[-1] == 64 << 10, "a thousand bytes lack"
