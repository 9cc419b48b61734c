"""A block that is refused, or whose broker is away, fails alone: the others of a call have their own outcomes."""

from __future__ import annotations

import pickle
from concurrent.futures import Future

import pytest
from fix_client import MemoryCluster, memory_session
from waiting import in_loop

from metaq.backends.metaq.session import Session
from metaq.client.async_producer import AsyncProducer
from metaq.client.producer import Producer
from metaq.client.records import Sent
from metaq.client.sending.blocks import Block, BlockWriter
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import BrokerError, ConnectionFailed, ExtensionMissing, MetaqError, SendFailed
from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_message, walk
from metaq.model import Address, Partition
from metaq.protocols.text.commands import Command, Put, PutBatch, Reply, Result, Version
from metaq.testing.memory import MemoryBroker

KINDS = [frozenset[str](), frozenset({"mput"})]
IDS = ["Java", "ours"]
CLOSED, OPEN, ELSEWHERE = Partition(0, 0), Partition(0, 1), Partition(1, 0)
MANY = 40
"""Partitions: more than the blocks in flight."""


class PartlyClosed(MemoryBroker):
    """Refuses puts to partition 0."""

    refusal = 403, "partition[{}-0] has been closed!"
    """The code, and the text for a broker's id."""

    def answer(self, command: Command) -> Reply | None:
        if isinstance(command, Put | PutBatch) and command.partition == 0:
            self._note(command)
            code, text = self.refusal
            return Result(code, text.format(self.broker_id), command.opaque)
        return super().answer(command)


def cluster_of(extensions: frozenset[str], partitions: int = 2) -> MemoryCluster:
    return MemoryCluster(
        PartlyClosed({"t": partitions}, broker_id=0, extensions=extensions),
        MemoryBroker({"t": 1}, broker_id=1, extensions=extensions),
    )


def producer_of(cluster: MemoryCluster) -> Producer:
    """A producer that takes all submitted messages before it sends."""
    return Producer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool, linger_s=60.0)


def stored(cluster: MemoryCluster, where: Partition) -> list[bytes]:
    return [frame.body for frame in walk(cluster.brokers[where.broker_id].partition("t", where.index).content())]


@pytest.mark.parametrize("extensions", KINDS, ids=IDS)
def test_a_closed_partition_fails_its_own_futures_only(extensions: frozenset[str]) -> None:
    cluster = cluster_of(extensions)
    with producer_of(cluster) as producer:
        futures = [producer.submit("t", f"{where}", partition=where) for where in (CLOSED, OPEN, ELSEWHERE)]
        assert producer.flush(60)
        assert_settled(*futures)
    assert [stored(cluster, where) for where in (CLOSED, OPEN, ELSEWHERE)] == [[], [b"0-1"], [b"1-0"]]


def assert_settled(closed: Future[Sent], *others: Future[Sent]) -> None:
    with pytest.raises(SendFailed, match=r"403: partition\[0-0\] has been closed!"):
        closed.result(60)
    assert [future.result(60).partition for future in others] == [OPEN, ELSEWHERE]


@in_loop
async def test_a_closed_partition_fails_its_own_futures_only_in_a_loop() -> None:
    cluster = cluster_of(KINDS[1])
    async with AsyncProducer(producer_of(cluster), wait_for_window=True) as producer:
        closed, *others = [await producer.submit("t", "x", partition=at) for at in (CLOSED, OPEN, ELSEWHERE)]
        await producer.flush(60)
        with pytest.raises(SendFailed, match=r"403: partition\[0-0\] has been closed!"):
            await closed
        assert [(await future).partition for future in others] == [OPEN, ELSEWHERE]


@pytest.mark.parametrize("extensions", KINDS, ids=IDS)
def test_what_is_acknowledged_beside_a_closed_partition_is_in_sent(extensions: frozenset[str]) -> None:
    cluster = cluster_of(extensions, MANY)
    producer = Producer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool)  # takes them in rotation
    with pytest.raises(SendFailed, match="403") as failed:
        producer.send_many("t", [b"%d" % number for number in range(2 * (MANY + 1))])
    missing = [at for at, one in enumerate(failed.value.sent) if one is None]
    assert missing == [0, MANY + 1]
    assert isinstance(failed.value.__cause__, BrokerError)
    assert all(len(stored(cluster, Partition(0, index))) == 2 for index in range(1, MANY))
    assert cluster.pool.opened == 2, "the connections can be used again"


def test_a_broker_that_is_away_fails_its_own_messages_only() -> None:
    cluster = MemoryCluster(MemoryBroker({"t": 1}), MemoryBroker({"t": 1}, broker_id=1))
    with producer_of(cluster) as producer:
        producer.publish("t")
        cluster.brokers[0].kill()
        away, there = (producer.submit("t", "x", partition=where) for where in (CLOSED, ELSEWHERE))
        assert producer.flush(60)
        assert there.result(60).offset == 0
        with pytest.raises(SendFailed) as failed:
            away.result(60)
        assert isinstance(failed.value.__cause__, ConnectionFailed)


@pytest.mark.parametrize("is_stored", [False, True], ids=["away", "lost"])
def test_a_failed_send_says_whether_it_was_sent(*, is_stored: bool) -> None:
    broker = MemoryBroker({"t": 1})
    cluster = MemoryCluster(broker)
    producer = Producer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool)
    producer.publish("t")

    def crash(command: Command) -> None:
        if isinstance(command, Put | PutBatch):
            broker.kill()

    broker.before_command = crash
    if not is_stored:
        broker.kill()
    with pytest.raises(SendFailed, match="connect failed") as failed:
        producer.send("t", "x")
    assert failed.value.unanswered is is_stored
    assert pickle.loads(pickle.dumps(failed.value)).unanswered is is_stored
    assert len(stored(cluster, CLOSED)) == is_stored


def block_of(where: Partition, *texts: bytes) -> Block:
    block: Block = Block("t", where)
    block.messages = [encode_message(text) for text in texts or [b"x"]]
    block.begin()
    return block


def settled(session: Session, blocks: list[Block]) -> MetaqError | None:
    """Send the blocks and settle them; return the first error."""
    writer = BlockWriter(session, "t", blocks)
    writer.write()
    writer.flush()
    return writer.settle()


def acknowledged(block: Block) -> list[Sent]:
    return [one for one in block.outcomes or () if one is not None]


NO_SLAVE = "Slave is disconnected no answer within 2 s; it may be stored, and is readable once the slave has it"


class WithoutSlave(PartlyClosed):
    """Refuses them as the master of a synchronous pair that loses its slave meanwhile."""

    refusal = 500, f"Put message failed.Detail:{NO_SLAVE}"


@pytest.mark.parametrize("extensions", KINDS, ids=IDS)
def test_a_refusal_that_says_so_may_be_stored_nevertheless(extensions: frozenset[str]) -> None:
    cluster = MemoryCluster(WithoutSlave({"t": 2}, extensions=extensions), MemoryBroker({"t": 1}, broker_id=1))
    with producer_of(cluster) as producer:
        refused, *others = (producer.submit("t", "x", partition=where) for where in (CLOSED, OPEN, ELSEWHERE))
        assert producer.flush(60)
        failures = [refused.exception(60)]
        assert [future.result(60).partition for future in others] == [OPEN, ELSEWHERE]
        with pytest.raises(SendFailed, match=NO_SLAVE) as failed:
            producer.send_many("t", ["x"], partition=CLOSED)
        failures.append(failed.value)
    assert [(one.retryable, one.unanswered) for one in failures if isinstance(one, SendFailed)] == [(False, True)] * 2


@pytest.mark.parametrize("extensions", KINDS, ids=IDS)
def test_nothing_is_sent_behind_a_refused_block_once_it_is_known(extensions: frozenset[str]) -> None:
    broker = PartlyClosed({"t": 1}, extensions=extensions)
    blocks = [block_of(CLOSED) for _ in range(MANY)]
    assert isinstance(settled(memory_session(broker), blocks), BrokerError)
    in_flight = 16 if extensions else 1
    assert len([one for one in broker.commands if isinstance(one, Put | PutBatch)]) == in_flight
    texts = [str(block.failure).partition("acknowledged: ")[2] for block in blocks]
    assert all(text.startswith("broker 127.0.0.1:8123 refused put to t partition 0") for text in texts[:in_flight])
    assert all(text.startswith("not sent, because an earlier block") for text in texts[in_flight:])


class Replaced(MemoryBroker):
    """Has a full disk for the first puts, and is lost with the answer to the next one. A Java broker follows it."""

    refusals = 0
    refuses_version = False
    """Whether the Java broker does not even say its version."""

    def answer(self, command: Command) -> Reply | None:
        if isinstance(command, Version) and self.refuses_version and not self.extensions:
            return Result(500, "no version", command.opaque)
        if isinstance(command, PutBatch) and self.refusals:
            self.refusals -= 1
            return Result(500, "No space left on device", command.opaque)
        if isinstance(command, PutBatch):
            self.kill()
            self.extensions = KINDS[0]
        return super().answer(command)

    def session(self, *, has_successor: bool = True) -> Session:
        """A session that is reconnected to the Java broker, if there is one."""
        session = memory_session(self)

        def locate(address: Address) -> Address:
            if not has_successor:
                raise MetaqError("another server is there")
            self.start()
            return address

        session.locate = locate
        return session


@pytest.mark.parametrize("error", [ExtensionMissing, BrokerError, MetaqError])
@pytest.mark.parametrize("number", [15, 16, MANY])
def test_nothing_is_stored_behind_a_block_that_waits_to_be_sent_again(error: type[MetaqError], number: int) -> None:
    broker = Replaced({"t": 2})
    broker.refusals, broker.refuses_version = 16, error is BrokerError
    first, *others = [block_of(CLOSED), *(block_of(OPEN, b"%d" % index) for index in range(number))]
    failure = settled(broker.session(has_successor=error is not MetaqError), [first, *others])
    assert isinstance(failure, error)
    for block in [first, *others]:
        assert isinstance(block.failure, SendFailed)
        assert isinstance(block.failure.__cause__, error)
        assert not acknowledged(block)
    assert isinstance(first.failure, SendFailed)
    assert first.failure.unanswered, "it was under way when the connection was lost"
    assert broker.partition("t", OPEN.index).content() == b""


class Shared(Replaced):
    """The Java broker also takes a put of another client before each put, and refuses one put."""

    refused = b""

    def answer(self, command: Command) -> Reply | None:
        if isinstance(command, Put):
            if command.body == self.refused:
                return Result(500, "wrong", command.opaque)
            super().answer(command._replace(body=b"of another", checksum=checksum(b"of another")))
        return super().answer(command)


@pytest.mark.parametrize("refused", [b"", b"2"], ids=["taken", "refused"])
def test_what_is_stored_is_acknowledged_when_the_broker_no_longer_takes_blocks(refused: bytes) -> None:
    broker = Shared({"t": 2})
    broker.refused = refused
    in_flight, last = [block_of(CLOSED) for _ in range(16)], block_of(OPEN, b"1", b"2", b"3")
    assert isinstance(settled(broker.session(), [*in_flight, last]), ExtensionMissing)
    frames = walk(broker.partition("t", OPEN.index).content())
    assert [one.offset for one in acknowledged(last)] == [one.offset for one in frames if one.body != b"of another"]
