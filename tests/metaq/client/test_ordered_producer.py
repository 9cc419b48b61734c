"""The ordered producer: fixed partitions, a spool while one is away, and the order when it is back."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until
from fix_client import MemoryCluster, Restarts, stored_messages
from forked import in_child

from metaq.backends.metaq.pool import SessionPool
from metaq.client.ordered import OrderedProducer, parse_partition_map
from metaq.client.records import Sent
from metaq.client.sending.spool import Spool
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import BrokerError, DeadlineExceeded, SendFailed, StoreFailed, TopicNotFound
from metaq.formats.frames import walk
from metaq.model import Address, Message, Partition, TopicPartition
from metaq.protocols.text.commands import Command, Put, PutBatch, Reply, Result
from metaq.testing.memory import MemoryBroker

P0 = TopicPartition("t", Partition(0, 0))


def test_partition_maps() -> None:
    assert parse_partition_map("0:2; 3:1") == [Partition(0, 0), Partition(0, 1), Partition(3, 0)]
    for text in ("", "0", "0:0", "0:2;0:1", "a:1", "0:2,1:1"):
        with pytest.raises(ValueError, match="partitions"):
            parse_partition_map(text)


def test_the_spool_keeps_messages_in_order_through_restarts(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "new" / "spool")
    spool.open()
    for number in range(5):
        spool.add(P0, Message(b"%d" % number, "a" if number else None))
    second = Spool(tmp_path / "new" / "spool")
    with pytest.raises(StoreFailed, match="another program uses it"):
        second.open()
    spool.close()
    with pytest.raises(StoreFailed, match="it is closed"):
        spool.add(P0, Message(b"x"))
    second.open()
    assert (second.places(), second.waiting(P0)) == ([P0], 5)
    (first, message), (number, _) = second.first(P0, 2)
    assert message == Message(b"0")
    second.remove(P0, [first, number])
    assert [message for _, message in second.first(P0, 9)] == [Message(b"%d" % n, "a") for n in (2, 3, 4)]
    assert second.waiting(P0) == 3
    second.close()


def test_a_spool_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="file/spool"):
        Spool(tmp_path / "file" / "spool").open()


@pytest.fixture
def pool() -> Iterator[SessionPool]:
    made = SessionPool()
    yield made
    made.close()


def ordered(restarts: Restarts, pool: SessionPool, folder: Path, **options: Any) -> OrderedProducer:
    directory = FixedDirectory([restarts.running.address], pool)
    return OrderedProducer(directory, pool, {"t": "0:1", "other": "0:1"}, folder / "spool", **options)


@pytest.mark.process
def test_order_and_content_are_exact_through_a_kill(restarts: Restarts, pool: SessionPool, tmp_path: Path) -> None:
    sent = [Message(b"%05d" % number, "odd" if number % 2 else None) for number in range(60)]
    with ordered(restarts, pool, tmp_path, retry_s=0.1) as producer:
        for number, message in enumerate(sent):
            if number == 20:
                restarts.running.kill()
            if number == 40:
                restarts.start()
            where = producer.send("t", message.payload, attribute=message.attribute, key="k")
            if number < 20:
                assert isinstance(where, Sent)
            if number == 20:
                assert where is None
        assert producer.recover(60)
        assert producer.spooled == {}
        assert isinstance(producer.send("t", b"last"), Sent)
    session = restarts.connect()
    assert stored_messages(session, "t", 0) == [*sent, Message(b"last")]
    session.close()


@pytest.mark.process
def test_what_waits_at_the_end_is_sent_by_the_next_producer(
    restarts: Restarts, pool: SessionPool, tmp_path: Path
) -> None:
    restarts.running.kill()
    with ordered(restarts, pool, tmp_path, retry_s=1000) as producer:
        assert [producer.send("t", text) for text in ("a", "b")] == [None, None]
        assert producer.spooled == {P0: 2}
        assert not producer.recover(0.2)
    restarts.start()
    with ordered(restarts, pool, tmp_path) as producer:
        assert producer.recover(math.inf)
        producer.close(math.inf)
    session = restarts.connect()
    assert stored_messages(session, "t", 0) == [Message(b"a"), Message(b"b")]
    session.close()


@pytest.mark.process
def test_what_can_never_be_sent_is_refused(restarts: Restarts, pool: SessionPool, tmp_path: Path) -> None:
    with ordered(restarts, pool, tmp_path) as producer:
        with pytest.raises(TopicNotFound, match="'nothing'"):
            producer.send("nothing", "x")
        with pytest.raises(ValueError, match="partition 5-5: t has 0-0"):
            producer.send("t", "x", partition=Partition(5, 5))
        with pytest.raises(TypeError, match="data: expected bytes or a text, got int"):
            producer.send("t", 5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="key: expected bytes or a text, got int"):
            producer.send("t", "x", key=5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="data: the text cannot be written as UTF-8, surrogates not allowed"):
            producer.send("t", "\ud800")
        assert producer.send("other", "a topic that no broker accepts yet") is None
        assert list(producer.spooled) == [TopicPartition("other", Partition(0, 0))]
    with pytest.raises(ValueError, match="retry_s 0"):
        ordered(restarts, pool, tmp_path, retry_s=0)


class Refusing:
    """Stands for the partition's broker: takes what it is told to, and notes what it took."""

    def __init__(self, producer: OrderedProducer, refused: bytes = b"") -> None:
        self.taken, self.away, self._refused = list[bytes](), True, refused
        producer._producer = producer._hurried = self  # type: ignore[assignment]

    def knows(self, topic: str, partition: Partition) -> bool:
        return not self.away

    def accepts(self, topic: str, partition: Partition) -> bool:
        return not self.away

    def send_many(self, topic: str, messages: list[Message], *, partition: Partition) -> list[Sent]:
        """One block: all of it, or what is before a message that is refused for good, if it is not the first block."""
        texts = [message.payload for message in messages]
        if self._refused in texts:
            cause = BrokerError("b:1", "put", 500, "too long")
            raise SendFailed(topic, str(cause), False, (None,) * len(texts)) from cause
        self.taken += texts
        return [Sent(topic=topic, partition=partition, offset=0, message_id=0) for _ in texts]

    def close(self) -> None:
        pass


@pytest.fixture
def alone(tmp_path: Path, pool: SessionPool) -> Iterator[OrderedProducer]:
    """A producer that sends what waits only if it is told to."""
    address = Address("127.0.0.1", 1)
    with OrderedProducer(
        FixedDirectory([address], pool), pool, {"t": "0:1"}, tmp_path / "spool", retry_s=1000
    ) as producer:
        yield producer


def test_a_message_refused_for_good_waits_and_earlier_ones_go_once(
    alone: OrderedProducer, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Refusing(alone, b"3")
    for number in range(6):
        assert alone.send("t", str(number)) is None
    broker.away = False
    for _ in range(3):
        assert not alone.recover(0.3)
    assert broker.taken == [b"0", b"1", b"2"]
    assert alone.spooled == {P0: 3}
    assert "too long" in caplog.text


class Silent(Refusing):
    """Does not answer for some partitions."""

    def __init__(self, producer: OrderedProducer, *silent: Partition) -> None:
        super().__init__(producer)
        self.away, self.asked, self._silent = False, list[Partition](), silent

    def send_many(self, topic: str, messages: list[Message], *, partition: Partition) -> list[Sent]:
        self.asked.append(partition)
        if partition in self._silent:
            cause = DeadlineExceeded("b:1", "put", 30.0)
            raise SendFailed(topic, str(cause), True, (None,) * len(messages), True) from cause
        return super().send_many(topic, messages, partition=partition)


@pytest.fixture
def waiting(pool: SessionPool, tmp_path: Path) -> Iterator[OrderedProducer]:
    """A producer without its thread, with a message for each partition in its spool."""
    directory = FixedDirectory([Address("127.0.0.1", 1)], pool)
    producer = OrderedProducer(directory, pool, {"t": "0:3;1:1"}, tmp_path / "spool")
    producer._spool.open()
    for partition in parse_partition_map("0:3;1:1"):
        producer._spool.add(TopicPartition("t", partition), Message(str(partition).encode()))
    yield producer
    producer.close()


def test_a_broker_that_does_not_answer_is_asked_once_a_round(waiting: OrderedProducer) -> None:
    broker = Silent(waiting, *parse_partition_map("0:3"))
    for asked in ([Partition(0, 0), Partition(1, 0)], [Partition(0, 1)], [Partition(0, 2)], [Partition(0, 0)]):
        waiting._send_spooled()
        assert broker.asked == asked
        broker.asked.clear()
    assert broker.taken == [b"1-0"]


def test_a_partition_that_does_not_answer_holds_up_others_of_its_broker_for_a_round(waiting: OrderedProducer) -> None:
    broker = Silent(waiting, Partition(0, 0), Partition(0, 1))
    for _ in range(3):
        waiting._send_spooled()
    assert broker.taken == [b"1-0", b"0-2"]


def test_a_partition_that_a_look_up_has_just_lost_is_waited_for(waiting: OrderedProducer) -> None:
    class Lost(Refusing):
        def send_many(self, topic: str, messages: list[Message], *, partition: Partition) -> list[Sent]:
            self.away = True
            raise ValueError(f"partition {partition}: t has 1-0")

    Lost(waiting).away = False
    for where in waiting._spool.places():
        waiting._spool.remove(where, [number for number, _ in waiting._spool.first(where, 1)])
    assert waiting._send_hurried(P0, [Message(b"x")]) == []


def test_what_is_spooled_for_a_broker_is_sent_while_another_one_is_away(tmp_path: Path) -> None:
    """Also if the brokers are known from messages that did not wait."""
    brokers = [MemoryBroker({"t": 1}, broker_id=number) for number in range(2)]
    cluster = MemoryCluster(*brokers)
    directory = FixedDirectory(cluster.addresses, cluster.pool)
    with OrderedProducer(directory, cluster.pool, {"t": "0:1;1:1"}, tmp_path / "spool", retry_s=0.1) as producer:
        for text in ("first", "second"):
            sent = [producer.send("t", text, partition=Partition(number, 0)) for number in range(2)]
            assert sent == [None, None] if text == "second" else None not in sent
            for broker in brokers:
                broker.kill()
        brokers[1].start()
        wait_until(lambda: producer.spooled == {P0: 1}, "the other broker's message to be sent")


@pytest.mark.parametrize("is_sent", [False, True], ids=["away", "lost"])
def test_a_message_that_cannot_be_spooled_may_be_stored_if_an_attempt_was_not_answered(
    tmp_path: Path, *, is_sent: bool
) -> None:
    broker = MemoryBroker({"t": 1})
    cluster = MemoryCluster(broker)
    directory = FixedDirectory(cluster.addresses, cluster.pool)
    with OrderedProducer(directory, cluster.pool, {"t": "0:1"}, tmp_path / "spool", retry_s=1000) as producer:
        assert producer.send("t", "first") is not None
        assert producer._spool._database is not None
        producer._spool._database.execute("PRAGMA query_only=1")

        def freeze(command: Command) -> None:
            if isinstance(command, Put | PutBatch):
                broker.shuffle = list.clear

        if is_sent:
            broker.before_command = freeze
        else:
            broker.kill()
        with pytest.raises(StoreFailed, match="readonly") as failed:
            producer.send("t", "second")
    assert ("was not acknowledged, and may have stored it" in str(failed.value)) is is_sent
    assert len(list(walk(broker.partition("t", 0).content()))) == 1 + is_sent


class PutsUnanswered(MemoryBroker):
    """Closes the connection after each put."""

    def answer(self, command: Command) -> Reply | None:
        reply = super().answer(command)
        return None if isinstance(command, Put | PutBatch) else reply


def test_a_message_that_was_not_sent_is_not_said_to_be_stored_because_another_may_be(tmp_path: Path) -> None:
    broker = PutsUnanswered({"t": 1})
    cluster = MemoryCluster(broker)
    directory = FixedDirectory(cluster.addresses, cluster.pool)
    with OrderedProducer(directory, cluster.pool, {"t": "0:1"}, tmp_path / "spool", retry_s=1000) as producer:
        assert producer.send("t", "first") is None
        assert not producer.recover(0.3)  # sent again, and not answered
        assert producer._spool._database is not None
        producer._spool._database.execute("PRAGMA query_only=1")
        with pytest.raises(StoreFailed, match="readonly") as failed:
            producer.send("t", "second")
    assert "may have stored it" not in str(failed.value)
    assert {frame.body for frame in walk(broker.partition("t", 0).content())} == {b"first"}


def test_a_refusal_says_that_the_message_may_be_stored_nevertheless(tmp_path: Path) -> None:
    broker = MemoryBroker({"t": 1})
    cluster = MemoryCluster(broker)
    directory = FixedDirectory(cluster.addresses, cluster.pool)
    answer = broker.answer

    def store_and_refuse(command: Command) -> Reply | None:
        reply = answer(command)
        is_put = isinstance(command, Put | PutBatch)
        return Result(500, "no slave; it may be stored", command.opaque) if is_put and reply else reply

    with OrderedProducer(directory, cluster.pool, {"t": "0:1"}, tmp_path / "spool", retry_s=1000) as producer:
        broker.answer = store_and_refuse  # type: ignore[method-assign]
        with pytest.raises(SendFailed, match="no slave; it may be stored") as failed:
            producer.send("t", "once")
        assert (failed.value.unanswered, producer.spooled) == (True, {})
        broker.answer = answer  # type: ignore[method-assign]
        assert producer.send("t", "next") is not None
    assert [frame.body for frame in walk(broker.partition("t", 0).content())] == [b"once", b"next"]


@pytest.mark.parametrize("extensions", [frozenset(), frozenset({"mput"})], ids=["Java", "ours"])
@pytest.mark.parametrize("before", [0, 5])
def test_nothing_is_stored_behind_a_message_that_is_refused_for_good(
    tmp_path: Path, extensions: frozenset[str], before: int
) -> None:
    broker = MemoryBroker({"t": 1}, extensions=extensions, message_bytes_max=1 << 20)
    cluster = MemoryCluster(broker)
    directory = FixedDirectory(cluster.addresses, cluster.pool)
    texts = [b"%d" % number for number in range(20)]
    texts.insert(before, b"x" * (2 << 20))

    def stored() -> list[bytes]:
        return [frame.body for frame in walk(broker.partition("t", 0).content())]

    with OrderedProducer(directory, cluster.pool, {"t": "0:1"}, tmp_path / "spool", retry_s=1000) as producer:
        broker.kill()
        assert not any(producer.send("t", text) for text in texts)
        broker.start()
        for _ in range(3):
            assert not producer.recover(0.3)
            assert (stored(), producer.spooled) == (texts[:before], {P0: len(texts) - before})
        broker.message_bytes_max = 4 << 20
        assert producer.recover(60)
    assert stored() == texts


def test_a_file_that_cannot_be_changed_does_not_have_messages_sent_again(
    alone: OrderedProducer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Refusing(alone)
    assert [alone.send("t", text) for text in "ab"] == [None, None]
    database = alone._spool._database
    assert database is not None
    database.execute("PRAGMA query_only=1")  # as on a disk that is full: not even a deletion goes through
    broker.away = False
    for _ in range(3):
        alone.recover(0.3)
    assert alone.send("t", "c") is not None, "nothing waits any more"
    assert broker.taken == [b"a", b"b", b"c"]
    assert "readonly" in caplog.text
    database.execute("PRAGMA query_only=0")
    alone.close()
    spool = Spool(tmp_path / "spool")
    spool.open()
    assert spool.places() == []
    spool.close()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (b"this is no database, though as long as one would begin", "file is not a database"),
        ("INSERT INTO waiting (topic, part, body) VALUES ('t', 'nowhere', x'00')", "nowhere"),
        ("DROP TABLE waiting; CREATE TABLE waiting (other TEXT)", "no such column"),
    ],
)
def test_a_damaged_spool_is_named(tmp_path: Path, damage: bytes | str, says: str) -> None:
    path = tmp_path / "spool"
    if isinstance(damage, bytes):
        path.write_bytes(damage * 100)
    else:
        spool = Spool(path)
        spool.open()
        spool.close()
        database = sqlite3.connect(path)
        database.executescript(damage)
        database.close()
    for _ in range(2):  # nothing of the first attempt is left open
        with pytest.raises(StoreFailed, match=says) as failed:
            Spool(path).open()
        assert str(path) in str(failed.value)


def test_a_row_that_cannot_be_read_does_not_end_the_recovery(
    alone: OrderedProducer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Refusing(alone)
    assert alone.send("t", "a") is None
    database = sqlite3.connect(tmp_path / "spool", timeout=60)  # its own: the producer's thread uses the spool's
    with database:
        database.execute("UPDATE waiting SET body = 5")
    broker.away = False
    assert not alone.recover(0.3)
    assert "cannot be read" in caplog.text
    with database:
        database.execute("UPDATE waiting SET body = x'61'")
    database.close()
    assert alone.recover(60)
    assert broker.taken == [b"a"]


def test_ctrl_c_waits_for_a_broker_that_hangs_for_some_seconds_only(
    alone: OrderedProducer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, entered, answered, ended = Refusing(alone), *(threading.Event() for _ in range(3))

    def hang(topic: str, messages: list[Message], *, partition: Partition) -> list[Sent]:
        entered.set()
        answered.wait(60)
        ended.set()
        return []

    monkeypatch.setattr("metaq.client.shells.INTERRUPTED_S", 0.05)
    assert alone.send("t", "waits") is None
    monkeypatch.setattr(broker, "send_many", hang)
    broker.away = False
    alone.recover(0)
    assert entered.wait(60)
    alone.__exit__(KeyboardInterrupt, None, None)
    assert not ended.is_set()
    spool = Spool(tmp_path / "spool")
    spool.open()
    assert spool.waiting(P0) == 1
    spool.close()
    answered.set()


def test_a_producer_that_is_closed_or_belongs_to_a_parent_says_so(alone: OrderedProducer) -> None:
    Refusing(alone)
    assert alone.send("t", "a") is None

    def in_vain() -> bool:
        with pytest.raises(ValueError, match="the ordered producer belongs to the process"):
            alone.send("t", "b")
        alone.close()
        return True

    assert in_child(in_vain)
    assert alone.send("t", "b") is None
    assert alone.spooled == {P0: 2}
    alone.close()
    alone.close()
    with pytest.raises(ValueError, match="is not open"):
        alone.send("t", "c")
    with pytest.raises(ValueError, match="is not open"):
        alone.recover(60)
