"""A group over ZooKeeper whose sessions end, or whose ZooKeeper comes back empty: what was read is not forgotten."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from examples import rarely
from fix_broker import RunningBroker, wait_until
from fix_zookeeper import SESSION_S, Brokers, ZooKeeperRoot

from metaq import MetaQ
from metaq.client.group_consumer import GroupConsumer
from metaq.client.offsets import file
from metaq.client.sql_offsets import sqlite
from metaq.errors import MetaqError
from metaq.model import Partition, TopicPartition

pytestmark = pytest.mark.process

FAST: dict[str, Any] = {"session_s": SESSION_S, "poll_max_s": 0.1, "drain_s": 5.0, "save_s": 1000}
PARTITIONS, MESSAGES = 6, 2000
STARTS: dict[str, Callable[[], Any]] = {
    "earliest": lambda: "earliest",
    "latest": lambda: "latest",
    "time": lambda: int(time.time() * 1000),
}


@pytest.fixture
def broker(brokers: Brokers) -> RunningBroker:
    return brokers.start("one", f"[topic=test]\nnumPartitions={PARTITIONS}\n")


@pytest.fixture
def mq(broker: RunningBroker, zookeeper: ZooKeeperRoot) -> Iterator[MetaQ]:
    with MetaQ(f"zk://{zookeeper.option}") as made:
        made.producer().send_many("test", [b"%d" % number for number in range(MESSAGES)])
        yield made


def fetch_all(consumer: GroupConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [one.data for one in consumer.fetch(timeout=10)]
    return found


def restart(zookeeper: ZooKeeperRoot, *, empty: bool = False) -> None:
    """Stop it until all sessions must be over for their clients, and start it again."""
    zookeeper.server.kill()
    if empty:
        zookeeper.server.empty()
    ended = time.monotonic() + 2 * SESSION_S
    wait_until(lambda: time.monotonic() > ended, "sessions are over")
    zookeeper.server.start()


@pytest.mark.parametrize(
    ("stored", "empty"),
    [
        *(("zookeeper", True), ("file", False)),
        *rarely(("zookeeper", False), ("file", True), ("sqlite", False), ("sqlite", True)),
    ],
)
def test_alone_it_goes_on_from_what_it_has_read(
    mq: MetaQ, broker: RunningBroker, zookeeper: ZooKeeperRoot, tmp_path: Path, stored: str, empty: bool
) -> None:
    """Its broker is slower to come back than the consumer."""
    makes = {"zookeeper": lambda path: None, "file": file, "sqlite": sqlite}
    with mq.consumer("g", ["test"], offsets=makes[stored](tmp_path / "offsets"), **FAST) as consumer:
        assert len(fetch_all(consumer, MESSAGES)) == MESSAGES
        broker.process.send_signal(signal.SIGSTOP)
        restart(zookeeper, empty=empty)
        wait_until(lambda: not consumer.fetch(timeout=0.1) and consumer.paused is None, "it is a member again", 60)
        wait_until(lambda: consumer.assignment == [], "no broker is there", 60)
        broker.process.send_signal(signal.SIGCONT)
        wait_until(lambda: len(consumer.assignment) == PARTITIONS, "the broker has registered again", 60)
        mq.producer().send("test", b"later")
        assert fetch_all(consumer, 1) == [b"later"], "nothing is repeated, not even what was in hand"


class Member:
    """Reads in a thread, and saves when the test says so."""

    def __init__(self, stack: ExitStack, mq: MetaQ, name: str, seen: list[tuple[str, bytes]], **options: Any) -> None:
        self.consumer: GroupConsumer = mq.consumer("g", ["test"], consumer_id=name, **FAST | options)
        self._name, self._seen = name, seen
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        stack.callback(self.stop)

    def _run(self) -> None:
        with self.consumer:
            for message in self.consumer:
                self._seen.append((self._name, message.data))

    def stop(self) -> None:
        self.consumer.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()


class Sender:
    """Sends numbered messages all the time; ``sent`` has those that are acknowledged."""

    def __init__(self, stack: ExitStack, mq: MetaQ) -> None:
        self._producer, self.sent, self._over = mq.producer(), list[bytes](), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        stack.callback(self.stop)

    def _run(self) -> None:
        while not self._over.wait(0.01):
            bodies = [b"new %d" % (len(self.sent) + number) for number in range(PARTITIONS)]
            try:
                for index, body in enumerate(bodies):
                    self._producer.send("test", body, partition=Partition(3, index))
                    self.sent.append(body)
            except MetaqError:
                pass

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)


@pytest.mark.parametrize("start", ["latest", *rarely("earliest", "time")])
def test_three_members_and_an_emptied_zookeeper(mq: MetaQ, zookeeper: ZooKeeperRoot, start: str) -> None:
    seen: list[tuple[str, bytes]] = []
    given = STARTS[start]()
    with ExitStack() as stack:
        members = [Member(stack, mq, name, seen, start=given) for name in "abc"]
        wait_until(lambda: [len(one.consumer.assignment) for one in members] == [2, 2, 2], "they share", 60)
        wait_until(lambda: all(one.consumer.paused is None for one in members), "all read", 60)
        sender = Sender(stack, mq)
        wait_until(lambda: len(sender.sent) > 300, "messages are sent", 60)
        restart(zookeeper, empty=True)
        sent = len(sender.sent)
        wait_until(lambda: len(sender.sent) > sent + 300, "messages are sent", 60)
        sender.stop()
        wait_until(lambda: {data for _, data in seen} >= set(sender.sent), "none is lost", 60)
    counts = Counter(data for _, data in seen if data.startswith(b"new"))
    assert [data for data, count in counts.items() if count > 1] == []


def test_who_joins_an_emptied_zookeeper_waits_for_members_that_know_more(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    where = TopicPartition("test", Partition(3, 0))
    with mq.consumer("g", ["test"], consumer_id="b", **FAST) as old:
        fetch_all(old, MESSAGES)
        old.commit()
        position = old.position(where)
        restart(zookeeper, empty=True)
        with mq.consumer("g", ["test"], consumer_id="a", start="latest", **FAST) as new:
            wait_until(
                lambda: not (old.fetch(timeout=0.1) or new.fetch(timeout=0.1)) and where in new.assignment,
                "it joins",
                60,
            )
            assert new.position(where) == position


def test_where_a_group_begins_is_decided_once(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    """A member that ends without saving has begun all the same: what came meanwhile is for the next one."""
    with mq.consumer("g", ["test"], consumer_id="a", start="latest", **FAST) as first:
        wait_until(lambda: not first.fetch(timeout=0.1) and len(first.assignment) == PARTITIONS, "it has begun", 60)
        nodes = [node.text for node in zookeeper.dump("/consumers/g/offsets/test")[1:]]
        assert len(nodes) == PARTITIONS
        assert all(text.startswith("-1-") for text in nodes)


def test_a_member_that_read_more_than_it_saved_goes_on_there(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    """As after a freeze: another member begins at what was saved, reads less, and gives the partition back."""
    where = TopicPartition("test", Partition(3, 0))
    with mq.consumer("g", ["test"], consumer_id="a", **FAST) as consumer:
        fetch_all(consumer, MESSAGES)
        consumer.fetch(timeout=0.1)
        position = consumer.position(where)
        zookeeper.server.kill()
        wait_until(lambda: consumer.paused is not None, "the connection is lost", 60)
        zookeeper.server.start()
        wait_until(lambda: not consumer.fetch(timeout=0.1) and consumer.paused is None, "it is back", 60)
        assert consumer.position(where) == position
