"""Message counts and incarnations: what the client asks, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fix_client import ADDRESS, memory_session, offset_session, scripted_session

from metaq.backends.metaq.positions import incarnation, offset_of_message, ordinal_at
from metaq.backends.metaq.session import Session
from metaq.errors import BrokerError, ExtensionMissing, ProtocolError
from metaq.formats.frames import encode_frame
from metaq.testing.memory import MemoryBroker
from metaq.testing.scripted import Expect, Say

Ask = Callable[[Session, str, int, int], int]


def test_counts_go_on_when_segments_are_gone() -> None:
    broker = MemoryBroker({"t": 1}, segment_bytes_max=100)
    store = broker.partition("t", 0)
    offsets = [store.append(encode_frame(number, 0, b"x" * (number * 7 % 30))) for number in range(40)]
    session = memory_session(broker)
    store.drop_segments(2)
    kept = [number for number, at in enumerate(offsets) if at >= store.start]
    assert kept[0] > 0
    assert [ordinal_at(session, "t", 0, offsets[number] + 1) for number in kept] == kept
    assert [offset_of_message(session, "t", 0, number) for number in kept] == [offsets[number] for number in kept]
    assert [ordinal_at(session, "t", 0, at) for at in (-1, store.end, 2**62)] == [kept[0], 40, 40]
    assert [offset_of_message(session, "t", 0, number) for number in (-1, 0, 40, 2**62)] == [
        store.start,
        store.start,
        store.end,
        store.end,
    ]


@pytest.mark.parametrize("ask", [ordinal_at, offset_of_message])
def test_a_broker_that_keeps_no_counts_is_named(ask: Ask) -> None:
    session = memory_session(MemoryBroker({"t": 1}, extensions=frozenset({"boundary"})))
    with pytest.raises(ExtensionMissing, match=f"broker {ADDRESS} does not offer 'ordinal'"):
        ask(session, "t", 0, 0)


def test_a_recreated_partition_is_another_incarnation() -> None:
    broker = MemoryBroker({"t": 1})
    broker.partition("t", 0).append(encode_frame(1, 0, b"x"))
    session = memory_session(broker)
    former = incarnation(session, "t", 0)
    assert former == incarnation(session, "t", 0) == broker.partition("t", 0).incarnation
    store = broker.recreate("t", 0)
    assert (store.start, store.end) == (0, 0)
    assert incarnation(session, "t", 0) == store.incarnation != former


def test_a_broker_without_incarnations_reports_none() -> None:
    session = memory_session(MemoryBroker({"t": 1}, extensions=frozenset()))
    assert incarnation(session, "t", 0) is None


def incarnation_whatever_offset(session: Session, topic: str, index: int, _offset: int) -> object:
    return incarnation(session, topic, index)


@pytest.mark.parametrize("ask", [ordinal_at, offset_of_message, incarnation_whatever_offset])
def test_a_partition_without_store_is_the_brokers_error(ask: Ask) -> None:
    with pytest.raises(BrokerError, match="with 404"):
        ask(memory_session(MemoryBroker({"t": 1})), "t", 0, 5)


@pytest.mark.parametrize(("answer", "reported"), [(b"0123456789abcdef" * 2, "0123456789abcdef" * 2), (b"-", None)])
def test_what_goes_over_the_wire(answer: bytes, reported: str | None) -> None:
    session, transport = scripted_session(
        Expect(b"version 1\r\n"),
        Say(b"result 200 25 1\r\nx;ext=ordinal,incarnation"),
        Expect(b"offset t metaq-spark 3 700 2 ordinal\r\n"),
        Say(b"result 200 1 2\r\n9"),
        Expect(b"offset t metaq-spark 3 9 3 message\r\n"),
        Say(b"result 200 3 3\r\n700"),
        Expect(b"offset t metaq-spark 3 0 4 incarnation\r\n"),
        Say(b"result 200 %d 4\r\n%b" % (len(answer), answer)),
    )
    assert ordinal_at(session, "t", 3, 700) == 9
    assert offset_of_message(session, "t", 3, 9) == 700
    assert incarnation(session, "t", 3) == reported
    assert transport.finished


def test_an_answer_that_is_no_incarnation_is_malformed() -> None:
    session, _ = offset_session("incarnation", "t metaq-spark 0 0 2 incarnation", "0")
    with pytest.raises(ProtocolError, match=f"^broker {ADDRESS}: the answer to offset is '0', not an incarnation"):
        incarnation(session, "t", 0)
    assert session.closed
