"""The ordered producer: fixed partitions, a spool while one is away, and the order when it is back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_client import Restarts, stored_messages

from metaq.backends.metaq.pool import SessionPool
from metaq.client.ordered import OrderedProducer, Spool, parse_partition_map
from metaq.client.records import Sent
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import StoreFailed, TopicNotFound
from metaq.model import Message, Partition, TopicPartition

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
        assert producer.recover(30)
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
        assert producer.recover(30)
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
        with pytest.raises(TypeError, match="payload of a message"):
            producer.send("t", 5)  # type: ignore[arg-type]
        assert producer.send("other", "a topic that no broker accepts yet") is None
        assert list(producer.spooled) == [TopicPartition("other", Partition(0, 0))]
    with pytest.raises(ValueError, match="retry_s 0"):
        ordered(restarts, pool, tmp_path, retry_s=0)
