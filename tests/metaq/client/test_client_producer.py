"""Puts: what goes over the wire, what comes back, what a refusal says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fix_broker import wait_until
from fix_client import ADDRESS, MemoryCluster, memory_session, scripted_session
from hypothesis import given
from hypothesis import strategies as st
from waiting import in_loop

from metaq.backends.metaq.session import Session
from metaq.client.async_producer import AsyncProducer
from metaq.client.producer import ROUTE_AGE_S, Producer, Receipt, encode_block, put, put_batch
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import (
    BrokerError,
    ConnectionFailed,
    CorruptFrame,
    MasterMissing,
    ProtocolError,
    SendFailed,
    TopicNotFound,
)
from metaq.formats.frames import walk
from metaq.model import Address, LocalTransactionId, Message, Partition
from metaq.protocols.text.commands import Put, PutBatch
from metaq.testing.memory import MemoryBroker
from metaq.testing.scripted import Expect, Say

JAVA: frozenset[str] = frozenset()
MESSAGES = [Message(b"one"), Message(b""), Message(b"three", "attribute"), Message(b"four", "")]


def stored(broker: MemoryBroker, topic: str = "t", index: int = 0) -> list[Message]:
    return [frame.message for frame in walk(broker.partition(topic, index).content())]


def test_a_put_carries_its_checksum_and_returns_the_receipt() -> None:
    session, transport = scripted_session(
        Expect(b"put t 0 5 0 980881731 1\r\nworld"),  # recorded of the Java broker
        Say(b"result 200 25 1\r\n-5468928970998000896 0 25"),
    )
    assert put(session, "t", 0, Message(b"world")) == Receipt(-5468928970998000896, 0, 25)
    assert transport.finished


def test_an_attribute_is_a_block_before_the_payload() -> None:
    session, transport = scripted_session(
        Expect(b"put t 0 11 1 1427610183 1\r\n\x00\x00\x00\x03AAAFFFF"), Say(b"result 200 6 1\r\n1 0 50")
    )
    put(session, "t", 0, Message(b"FFFF", "AAA"))
    assert transport.finished


def test_a_put_in_a_transaction_names_it_and_has_no_offset_yet() -> None:
    session, _ = scripted_session(Expect(b"put t 0 5 0 980881731 TX:s:1 1\r\nworld"), Say(b"result 200 6 1\r\n7 0 -1"))
    assert put(session, "t", 0, Message(b"world"), LocalTransactionId("s", 1)) == Receipt(7, 0, -1)


@pytest.mark.parametrize("extensions", [JAVA, frozenset({"mput"})])
def test_a_block_is_stored_in_order_with_and_without_mput(extensions: frozenset[str]) -> None:
    broker = MemoryBroker({"t": 1}, extensions=extensions)
    session = memory_session(broker)
    put(session, "t", 0, Message(b"before"))
    receipt = put_batch(session, "t", 0, *encode_block(MESSAGES))
    assert (receipt.partition_index, receipt.offset) == (0, 26)
    assert stored(broker) == [Message(b"before"), *MESSAGES]
    kinds = [type(command) for command in broker.commands if isinstance(command, Put | PutBatch)]
    assert kinds == ([Put, PutBatch] if extensions else [Put] * 5)


@given(st.lists(st.builds(Message, st.binary(max_size=50), st.none() | st.text(max_size=10)), max_size=10))
def test_a_block_reads_back_as_its_messages(messages: list[Message]) -> None:
    block, count = encode_block(messages)
    frames = list(walk(block))
    assert [frame.message for frame in frames] == messages
    assert count == len(messages)


def _put_unknown(session: Session) -> object:
    return put(session, "nosuch", 0, Message(b"x"))


def _put_outside(session: Session) -> object:
    return put_batch(session, "t", 9, *encode_block(MESSAGES))


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (_put_unknown, "put to nosuch partition 0 with 500: .*The server do not accept topic nosuch"),
        (_put_outside, "put to t partition 9 with 500: .*wrong partition 9"),
    ],
)
def test_a_refusal_names_broker_topic_partition_and_reason(act: Callable[[Session], object], what: str) -> None:
    session = memory_session(MemoryBroker({"t": 1}))
    with pytest.raises(BrokerError, match=f"^broker {ADDRESS} refused {what}"):
        act(session)
    assert session.quiet


def test_a_closed_partition_is_403() -> None:
    session, _ = scripted_session(
        Expect(b"put t 0 5 0 980881731 1\r\nworld"), Say(b"result 403 31 1\r\npartition[0-0] has been closed!")
    )
    with pytest.raises(BrokerError, match="has been closed") as refused:
        put(session, "t", 0, Message(b"world"))
    assert (refused.value.code, refused.value.retryable) == (403, False)


@pytest.mark.parametrize("text", [b"", b"1 0", b"1 0 x", b"1 0 2 3"])
def test_a_receipt_that_cannot_be_read_is_malformed(text: bytes) -> None:
    session, _ = scripted_session(
        Expect(b"put t 0 5 0 980881731 1\r\nworld"), Say(b"result 200 %d 1\r\n%b" % (len(text), text))
    )
    with pytest.raises(ProtocolError, match=f"^broker {ADDRESS}: the answer to put is"):
        put(session, "t", 0, Message(b"world"))
    assert session.closed


@pytest.mark.parametrize("change", [lambda block: block[:-1], lambda block: block + b"x", lambda block: b""])
def test_a_block_with_another_count_is_refused_before_the_first_put(change: Callable[[bytes], bytes]) -> None:
    broker = MemoryBroker({"t": 1}, extensions=JAVA)
    block, count = encode_block(MESSAGES)
    with pytest.raises(ValueError, match="count=4: the block of"):
        put_batch(memory_session(broker), "t", 0, change(block), count)
    assert broker.partitions == {}


def test_a_damaged_block_is_refused_before_the_first_put() -> None:
    broker = MemoryBroker({"t": 1}, extensions=JAVA)
    block, count = encode_block(MESSAGES)
    with pytest.raises(CorruptFrame, match="the block to put"):
        put_batch(memory_session(broker), "t", 0, block[:-1] + b"X", count)
    assert broker.partitions == {}


def test_an_empty_block_is_refused() -> None:
    with pytest.raises(ValueError, match="count=0"):
        put_batch(memory_session(MemoryBroker({"t": 1})), "t", 0, b"", 0)


# ---- the producer for scripts


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(MemoryBroker({"t": 2}, broker_id=0), MemoryBroker({"t": 1}, broker_id=1))


def test_the_producer_takes_the_partitions_in_rotation(cluster: MemoryCluster) -> None:
    producer = Producer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool)
    for number in range(6):
        producer.put("t", Message(b"%d" % number))
    first, second = cluster.brokers
    assert stored(first, "t", 0) == [Message(b"0"), Message(b"3")]
    assert stored(first, "t", 1) == [Message(b"1"), Message(b"4")]
    assert stored(second, "t", 0) == [Message(b"2"), Message(b"5")]


def test_the_producer_uses_partitions_that_come_meanwhile(cluster: MemoryCluster) -> None:
    producer = Producer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool)
    producer.send("t", "one")
    cluster.brokers[1].topics["t"] = 2
    cluster.transport.clock.advance(ROUTE_AGE_S)

    def is_used() -> bool:
        return Partition(1, 1) in {producer.send("t", "more").partition for _ in range(4)}

    wait_until(is_used, "the new partition to be used")


@pytest.mark.parametrize(
    "send",
    [
        lambda producer, where: producer.send("t", "x", partition=where),
        lambda producer, where: producer.send_many("t", ["x"], partition=where)[0],
        lambda producer, where: producer.submit("t", "x", partition=where).result(60),
        lambda producer, where: producer.put("t", Message(b"x"), where),
        lambda producer, where: producer.transaction().send("t", "x", partition=where),
    ],
    ids=["send", "send_many", "submit", "put", "transaction"],
)
def test_a_partition_that_came_meanwhile_is_sent_to(cluster: MemoryCluster, send: Callable[..., Any]) -> None:
    with Producer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool) as producer:
        producer.send("t", "one")
        with pytest.raises(ValueError, match="partition 1-1: t has 0-0, 0-1, 1-0"):
            send(producer, Partition(1, 1))
        cluster.brokers[1].topics["t"] = 2
        send(producer, Partition(1, 1))
        assert producer.send("t", "y", partition=Partition(1, 1)).partition == Partition(1, 1)


@in_loop
async def test_a_partition_that_came_meanwhile_is_sent_to_in_a_loop(cluster: MemoryCluster) -> None:
    producer = Producer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool)
    async with AsyncProducer(producer, wait_for_window=True) as loops:
        await loops.send("t", "one")
        with pytest.raises(ValueError, match="partition 1-1: t has 0-0, 0-1, 1-0"):
            await loops.send("t", "x", partition=Partition(1, 1))
        cluster.brokers[1].topics["t"] = 2
        assert (await loops.send("t", "x", partition=Partition(1, 1))).partition == Partition(1, 1)


def test_a_broker_that_is_away_stops_no_send_to_others(cluster: MemoryCluster) -> None:
    producer = Producer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool)
    here = Partition(0, 0)
    producer.send("t", "one", partition=here)
    cluster.brokers[1].kill()
    for _ in range(3):
        cluster.transport.clock.advance(ROUTE_AGE_S)
        assert producer.send("t", "more", partition=here).partition == here
    assert len(stored(cluster.brokers[0])) == 4


class Found(FixedDirectory):
    """Looks a topic up, or answers ``now`` instead."""

    now: Exception | dict[Partition, Address] | None = None

    def writable(self, topic: str) -> dict[Partition, Address]:
        if isinstance(self.now, Exception):
            raise self.now
        return super().writable(topic) if self.now is None else self.now


@pytest.mark.parametrize(
    ("now", "is_known"),
    [
        (ConnectionFailed("127.0.0.1:8123", "connect", "it is away"), [True, True]),
        (MasterMissing("t", ["0"], "in ZooKeeper"), [True, True]),
        ({Partition(1, 0): Address("127.0.0.1", 8124)}, [False, True]),
        (TopicNotFound("t", ["127.0.0.1:8123"]), [False, False]),
    ],
    ids=["not looked up", "no master", "only at the other broker", "nowhere"],
)
def test_brokers_are_kept_after_a_failure_until_a_lookup_has_succeeded(
    cluster: MemoryCluster, now: Exception | dict[Partition, Address], is_known: list[bool]
) -> None:
    """Another broker may be at the address of one that has gone, so a partition that is not found is forgotten."""
    directory = Found(cluster.addresses, cluster.pool)
    with Producer(directory, cluster.pool, retries=0, routes={}) as producer:
        producer.send("t", "one", partition=Partition(0, 0))
        directory.now = now
        cluster.brokers[0].kill()
        with pytest.raises(SendFailed):
            producer.send("t", "two", partition=Partition(0, 0))
        wait_until(lambda: "t" not in producer.submissions.lookups._under_way, "the look-up")
        assert [producer.knows("t", Partition(broker, 0)) for broker in (0, 1)] == is_known


def test_the_producer_puts_where_it_is_asked_to(cluster: MemoryCluster) -> None:
    producer = Producer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool)
    assert producer.put("t", Message(b"x"), Partition(1, 0)).offset == 0
    assert stored(cluster.brokers[1]) == [Message(b"x")]
    with pytest.raises(ValueError, match="partition 1-7: t has 0-0, 0-1, 1-0"):
        producer.put("t", Message(b"x"), Partition(1, 7))
    with pytest.raises(TopicNotFound, match=r"'nosuch' does not exist on .*; topics there: t"):
        producer.put("nosuch", Message(b"x"))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Message("x"), "payload of a message: expected bytes, got str; encode it first: text.encode()"),  # type: ignore[arg-type]
        (lambda: Message(5), "payload of a message: expected bytes, got int"),  # type: ignore[arg-type]
        (lambda: Message(None), "payload of a message: expected bytes, got NoneType"),  # type: ignore[arg-type]
        (lambda: Message(b"x", b"y"), "attribute of a message: expected a string, got bytes"),  # type: ignore[arg-type]
    ],
)
def test_a_message_says_what_it_wants(make: Callable[[], Message], sentence: str) -> None:
    with pytest.raises(TypeError) as error:
        make()
    assert str(error.value) == sentence


@pytest.mark.parametrize("given", [b"payload", "text", None])
def test_a_put_says_what_it_wants_before_anything_is_sent(given: Any) -> None:
    session, transport = scripted_session()
    cluster = MemoryCluster(MemoryBroker({"t": 1}))
    producer = Producer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool)
    for attempt in (
        lambda: put(session, "t", 0, given),
        lambda: producer.put("t", given),
        lambda: encode_block([Message(b"x"), given]),
    ):
        with pytest.raises(TypeError) as error:
            attempt()
        expected = f"message: expected a Message such as Message(b'...'), got {type(given).__name__}"
        assert str(error.value) == expected
    assert transport.finished
    assert not cluster.brokers[0].commands
