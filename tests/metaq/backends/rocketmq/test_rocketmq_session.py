"""A session against a server that plays a script: answers in any order, requests of its own, and damage."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from metaq.backends.rocketmq.answers import one_line
from metaq.backends.rocketmq.errors import AccessDenied, RequestRefused
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.session import OUTSTANDING_MAX, Session
from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError, ProtocolError
from metaq.model import Address
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.acl import Credentials, is_signed_by, sign
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand, request
from metaq.protocols.remoting.frames import FrameDecoder, encode
from metaq.protocols.remoting.headers.clients import GetConsumerRunningInfo, NotifyConsumerIdsChanged
from metaq.protocols.remoting.headers.offsets import GetMaxOffset, UpdateConsumerOffset
from metaq.testing.scripted import Disconnect, Expect, Refuse, Say, ScriptedTransport, Step

ADDRESS = Address("broker", 10911)
ASKED = request(GetMaxOffset.CODE, {"topic": "t", "queueId": "0"})


def asked(opaque: int) -> Expect:
    return Expect(encode(replace(ASKED, opaque=opaque)))


def answer(opaque: int, code: int = 0, remark: str | None = None, **ext: str) -> bytes:
    return encode(replace(ASKED, opaque=opaque).reply(code, ext, remark=remark))


def session_with(*steps: Step) -> Session:
    transport = ScriptedTransport([steps])
    return Session.connect(ADDRESS, Timeouts(1.0, 2.0), transport, transport.clock)


def test_answers_are_matched_by_opaque_in_any_order_and_in_any_chunks() -> None:
    session = session_with(asked(0), asked(1), asked(2), Say(answer(2, n="2") + answer(0, n="0") + answer(1, n="1"), 7))
    opaques = session.post_all([ASKED] * 3, "offsets")
    assert [session.wait(opaque).ext["n"] for opaque in opaques] == ["0", "1", "2"]
    assert session.quiet
    session.close()


@pytest.mark.parametrize("credentials", [None, Credentials("reader", "secret")], ids=["unsigned", "signed"])
def test_a_body_that_is_sent_from_where_it_is(credentials: Credentials | None) -> None:
    body = memoryview(bytearray(b"one batch"))
    expected = replace(ASKED, body=bytes(body))
    expected = expected if credentials is None else sign(expected, credentials)
    transport = ScriptedTransport([[Expect(encode(expected)), Say(answer(0, n="1"))]])
    session = Session.connect(ADDRESS, Timeouts(1.0, 2.0), transport, transport.clock, credentials)
    assert session.wait(session.post(ASKED, "a send", body=body)).ext["n"] == "1"
    assert session.quiet
    session.close()


def large_answer(opaque: int, body_bytes: int, **ext: str) -> bytes:
    return encode(replace(ASKED, opaque=opaque).reply(0, ext, bytes(body_bytes)))


@pytest.mark.parametrize("part", ["body", "header"])
def test_a_server_cannot_fill_the_memory_with_earlier_answers(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr("metaq.backends.rocketmq.session.ANSWERED_BYTES_MAX", 1000)
    size, ext = (401, {}) if part == "body" else (0, {"x": "y" * 400})
    answers = b"".join(large_answer(opaque, size, **ext) for opaque in (3, 2, 1))
    session = session_with(*map(asked, range(4)), Say(answers, 100))
    first, *_ = session.post_all([ASKED] * 4, "pulls")
    with pytest.raises(ProtocolError, match="3 responses of 1203 bytes together, above the limit of 1000"):
        session.wait(first)
    assert session.closed


def test_answers_that_were_waited_for_or_abandoned_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq.backends.rocketmq.session.ANSWERED_BYTES_MAX", 1000)
    session = session_with(*[step for each in range(20) for step in (asked(each), Say(large_answer(each, 900)))])
    for number in range(20):
        opaque = session.post(ASKED, "a pull")
        session.wait_any([opaque])
        if number % 2:
            assert len(session.wait(opaque).body) == 900
        else:
            session.abandon(opaque)
    assert session.quiet
    session.close()


def test_the_first_of_several_answers_ends_the_wait() -> None:
    rest = answer(0, n="0") + answer(1, n="1")
    session = session_with(asked(0), asked(1), asked(2), Say(answer(2, n="2")), Say(rest))
    first, second, third = session.post_all([ASKED] * 3, "offsets")
    session.wait_any([first, third])
    assert [session.is_answered(opaque) for opaque in (first, second, third)] == [False, False, True]
    session.poll("offsets")
    assert [session.wait(opaque).ext["n"] for opaque in (first, second, third)] == ["0", "1", "2"]
    session.poll("offsets")
    assert session.quiet
    session.close()
    with pytest.raises(ConnectionFailed):
        session.wait_any([first])


def test_the_wait_for_any_answer_has_a_deadline() -> None:
    session = session_with(asked(0))
    with pytest.raises(DeadlineExceeded, match="offsets"):
        session.wait_any([session.post(ASKED, "offsets")])
    assert session.closed
    session = session_with(asked(0), Disconnect())
    session.post(ASKED, "offsets")
    with pytest.raises(ConnectionFailed, match="a look"):
        session.poll("a look")
    assert session.closed


def test_an_abandoned_answer_is_dropped() -> None:
    session = session_with(asked(0), asked(1), Say(answer(0)), Say(answer(1, n="1")))
    first, second = session.post_all([ASKED] * 2, "offsets")
    session.abandon(first)
    assert session.wait(second).ext["n"] == "1"
    assert session.quiet
    session.close()


def test_requests_of_the_server_are_refused_and_its_notices_ignored() -> None:
    notice = replace(request(NotifyConsumerIdsChanged.CODE, {"consumerGroup": "g"}, oneway=True), opaque=7)
    question = replace(request(GetConsumerRunningInfo.CODE, {}), opaque=0)
    refused = question.reply(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark="request GET_CONSUMER_RUNNING_INFO (307) is not supported by this client",
    )
    session = session_with(
        asked(0), Say(encode(notice) + encode(question)), Expect(encode(refused)), Say(answer(0, n="0"))
    )
    assert session.call(ASKED, "offset").ext["n"] == "0"
    session.close()


def _frame(length: int, word: int = 2, rest: bytes = b"{}") -> bytes:
    return struct.pack(">iI", length, word) + rest


@pytest.mark.parametrize(
    ("bytes_", "sentence"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "broker broker:10911: frame"),
        (_frame(0), "frame with a length of 0"),
        (_frame(-1), "frame with a length of -1"),
        (_frame(1 << 30), "above the limit"),
        (_frame(100, 0x05000002), "header of type 5"),
        (_frame(6, 50), "header of 50 bytes"),
        (_frame(8, 4, b"nope"), "JSON"),
        (_frame(8, 4, b'["a"'), "JSON"),
        (answer(5), "a response to request 5, which is not in flight"),
    ],
)
def test_what_is_no_answer_closes_the_session_with_one_sentence(bytes_: bytes, sentence: str) -> None:
    session = session_with(asked(0), Say(bytes_))
    with pytest.raises(ProtocolError) as caught:
        session.call(ASKED, "offset")
    assert sentence in str(caught.value)
    assert session.closed
    with pytest.raises(ConnectionFailed, match="this session was given up: ProtocolError in offset"):
        session.call(ASKED, "offset")


@pytest.mark.parametrize(
    ("steps", "error", "sentence"),
    [
        ([asked(0)], DeadlineExceeded, "no answer to offset within 2 s"),
        ([asked(0), Say(answer(0)[:9])], DeadlineExceeded, "no answer to offset within 2 s"),
        ([asked(0), Disconnect()], ConnectionFailed, "the server closed the connection without a response"),
        ([asked(0), Say(answer(0)[:9]), Disconnect()], ConnectionFailed, "in the middle of a response"),
    ],
)
def test_a_server_that_does_not_answer(steps: list[Step], error: type[MetaqError], sentence: str) -> None:
    session = session_with(*steps)
    with pytest.raises(error, match=sentence) as caught:
        session.call(ASKED, "offset")
    assert caught.value.retryable
    assert session.closed


def test_nobody_listens() -> None:
    pool = SessionPool(transport=ScriptedTransport([[Refuse()]]))
    with pytest.raises(ConnectionFailed, match="broker broker:10911: connect failed"), pool.lease(ADDRESS):
        pass


@pytest.mark.parametrize(
    ("code", "text", "kind", "retryable"),
    [
        (2, "[REJECTREQUEST]busy", RequestRefused, True),
        (1, "[PC_SYNCHRONIZED]broker busy", RequestRefused, True),
        (1, "java.lang.NullPointerException", RequestRefused, False),
        (1, "org.apache.rocketmq.acl.common.AclException: Check signature failed", AccessDenied, False),
        (16, "The user has no permission", AccessDenied, False),
        (16, "the topic[orders] pulling message is forbidden", RequestRefused, False),
        (17, "topic not exist", RequestRefused, False),
        (215, "slow down", RequestRefused, True),
    ],
)
def test_refusals(code: int, text: str, kind: type[RequestRefused], retryable: bool) -> None:
    session = session_with(asked(0), Say(answer(0, code, text)))
    with pytest.raises(kind) as caught:
        session.ask(ASKED, "the offset")
    assert type(caught.value) is kind
    assert caught.value.retryable is retryable
    assert str(caught.value).startswith(
        f"server broker:10911 refused the offset with {ResponseCode(code).name} ({code})"
    )
    assert not session.closed
    session.close()


def test_a_server_that_leaves_ends_the_session() -> None:
    session = session_with(asked(0), Say(answer(0, ResponseCode.GO_AWAY, "bye")))
    with pytest.raises(RequestRefused, match="GO_AWAY") as caught:
        session.ask(ASKED, "the offset")
    assert caught.value.retryable
    assert session.closed


def test_not_too_many_requests_at_once() -> None:
    session = session_with()
    with pytest.raises(RuntimeError, match=f"{OUTSTANDING_MAX} requests are in flight"):
        session.post_all([ASKED] * (OUTSTANDING_MAX + 1), "offsets")
    session.close()


class Recording:
    """A stream that keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[RemotingCommand] = []
        self._decoder = FrameDecoder()

    def connect_tcp(self, address: Address, timeout_s: float) -> Recording:
        return self

    def send(self, data: bytes, timeout_s: float, *, more: bool = False) -> None:
        self.sent += self._decoder.receive(data)

    def close(self) -> None:
        pass


def test_every_request_is_signed_and_secrets_stay_here() -> None:
    keys = Credentials("key", "the secret", "the token")
    stream = Recording()
    session = Session.connect(ADDRESS, transport=stream, credentials=keys)  # type: ignore[arg-type]
    session.post(ASKED, "offset")
    session.oneway(request(UpdateConsumerOffset.CODE, {"topic": "t"}), "commit")
    assert [is_signed_by(command, keys) for command in stream.sent] == [True, True]
    assert [command.is_oneway for command in stream.sent] == [False, True]
    assert "secret" not in repr(session)
    session.close()


def test_texts_of_servers_become_one_line() -> None:
    text = "topic[t] not exist, apply first please!\nSee http://rocketmq.apache.org/docs/faq/ for further details.\n"
    assert one_line(text) == "topic[t] not exist, apply first please!"
    assert one_line(None) == ""
    assert len(one_line("x" * 9999)) < 600
