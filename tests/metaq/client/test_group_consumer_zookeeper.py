"""Groups in a real ZooKeeper: what the tree shows, who reads what, and what happens when it is away."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fix_broker import wait_until
from fix_zookeeper import SESSION_S, Brokers, ZooKeeperRoot
from kazoo.client import KazooClient
from operated import ask

from metaq import MetaQ
from metaq.client.group_consumer import GroupConsumer
from metaq.client.groups.deliveries import Delivery
from metaq.errors import ConsumerIdInUse, PartitionLost
from metaq.model import Partition, TopicPartition

pytestmark = pytest.mark.process

REQUEST_S = 25.0
"""Less than a request to a broker that does not answer takes."""

FAST: dict[str, Any] = {"session_s": 20.0, "poll_max_s": 0.1, "drain_s": 5.0}
EXPIRING = FAST | {"session_s": SESSION_S}
"""For tests that wait for the end of a session; a busy machine may end one of another test's by itself."""


@pytest.fixture
def mq(brokers: Brokers) -> Iterator[MetaQ]:
    """A cluster with one broker and a topic of four partitions."""
    with brokers.one_with_messages(partitions=4, messages=100) as made:
        yield made


class Reader:
    """A consumer that reads in a thread of its own until it is stopped."""

    def __init__(self, stack: ExitStack, mq: MetaQ, **options: Any) -> None:
        self.consumer: GroupConsumer = mq.consumer("g", ["test"], **FAST | options)
        self.seen: list[Delivery] = []
        self.stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        stack.callback(self.stop)

    def _run(self) -> None:
        with self.consumer:
            for message in self.consumer:
                self.seen.append(message)

    def stop(self) -> None:
        self.consumer.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()

    @property
    def share(self) -> list[str]:
        return [str(where.partition) for where in self.consumer.assignment]


def some_of_all(consumer: GroupConsumer) -> list[Delivery]:
    """Fetch until there is something of each of the four partitions."""
    found: list[Delivery] = []
    while {message.partition.index for message in found} != {0, 1, 2, 3}:
        found += consumer.fetch(100, timeout=10)
    return found


def owners(zookeeper: ZooKeeperRoot) -> dict[str, str]:
    return {node.path.rpartition("/")[2]: node.text for node in zookeeper.dump("/consumers/g/owners/test")[1:]}


def test_the_tree_is_that_of_a_java_consumer(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    with mq.consumer("g", ["test"], consumer_id="me", **FAST) as consumer:
        found: list[Delivery] = []
        while len(found) < 100:
            found += consumer.fetch(timeout=10)
        consumer.commit()
        nodes = {node.path: (node.ephemeral, node.text) for node in zookeeper.dump("/consumers")}
        assert nodes["/consumers/g/ids/g_me"] == (True, "test")
        for index in range(4):
            last = max((one for one in found if one.partition.index == index), key=lambda one: one.offset)
            assert nodes[f"/consumers/g/owners/test/3-{index}"] == (True, "g_me")
            assert nodes[f"/consumers/g/offsets/test/3-{index}"] == (False, f"{last.message_id}-{last.end}")
    nodes = {node.path: (node.ephemeral, node.text) for node in zookeeper.dump("/consumers")}
    assert "/consumers/g/ids/g_me" not in nodes
    assert not owners(zookeeper)
    assert nodes["/consumers/g/offsets/test/3-0"][1].startswith(str(found[0].message_id)[:3])


def test_members_hand_partitions_over_without_loss_or_repeats(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    producer = mq.producer()
    with ExitStack() as stack:
        first = Reader(stack, mq, consumer_id="1")
        wait_until(lambda: len(first.share) == 4, "the first one has all")
        second = Reader(stack, mq, consumer_id="2")
        wait_until(lambda: (first.share, second.share) == (["3-0", "3-1"], ["3-2", "3-3"]), "they share")
        assert owners(zookeeper) == {"3-0": "g_1", "3-1": "g_1", "3-2": "g_2", "3-3": "g_2"}
        sent = {b"%d" % number for number in range(100)}
        for number in range(100, 200):
            sent.add(b"%d" % number)
            producer.send("test", b"%d" % number)
        wait_until(lambda: len(first.seen) + len(second.seen) >= 200, "all came")
        first.stop()
        wait_until(lambda: len(second.share) == 4, "the second one has all")
        producer.send("test", b"last")
        wait_until(lambda: any(one.data == b"last" for one in second.seen), "it came")
    counts = Counter(one.data for one in first.seen + second.seen)
    assert counts == Counter(sent | {b"last"}), "each once"


@pytest.mark.parametrize("count", [1, 12], ids=["shorter", "past the offset"])
def test_a_topic_that_is_made_again_is_read_from_its_start(brokers: Brokers, count: int) -> None:
    broker = brokers.start("one")
    with MetaQ(f"zk://{brokers.zookeeper.option}") as mq, mq.consumer("g", ["test"], **FAST) as consumer:
        producer, where = mq.producer(), Partition(3, 0)
        producer.send_many("test", ["old"] * 8, partition=where)
        found: list[bytes] = []
        while len(found) < 8:
            found += [one.data for one in consumer.fetch(timeout=0.1)]
        consumer.commit()
        ask(broker, "delete", "test", "0", "--force")
        new = [b"%03d" % number for number in range(count)]
        producer.send_many("test", new, partition=where)

        def has_all() -> bool:  # those behind the old position may come before it is noticed, and again
            found.extend(one.data for one in consumer.fetch(timeout=0.1))
            return found[-count:] == new

        wait_until(has_all, "the new ones, from the first on")


@pytest.mark.parametrize("has_offsets", [False, True])
def test_a_stopped_broker_keeps_nobody_from_reading_the_others(brokers: Brokers, has_offsets: bool) -> None:
    stopped = brokers.start("stopped", broker_id=1)
    brokers.start("healthy", broker_id=2)
    with MetaQ(f"zk://{brokers.zookeeper.option}") as mq:
        for broker in (1, 2):
            mq.producer().send_many("test", ["before"] * 4, partition=Partition(broker, 0))
        if has_offsets:
            found: list[Delivery] = []
            with mq.consumer("g", ["test"], **FAST) as consumer:
                wait_until(lambda: bool(found.extend(consumer.fetch(timeout=0.1))) or len(found) == 8, "all came")
        mq.producer().send("test", "after", partition=Partition(2, 0))
        stopped.stop()
        with mq.consumer("g", ["test"], **FAST) as consumer:
            seen: list[Delivery] = []
            wait_until(
                lambda: bool(seen.extend(consumer.fetch(timeout=0.1))) or any(one.data == b"after" for one in seen),
                "the healthy broker is read",
            )
            assert {one.partition.broker for one in seen} == {2}
            assert len(seen) == (1 if has_offsets else 5)


def test_a_frozen_broker_delays_nothing_of_the_others(brokers: Brokers) -> None:
    frozen = brokers.start("frozen", broker_id=1)
    brokers.start("healthy", broker_id=2)
    with MetaQ(f"zk://{brokers.zookeeper.option}") as mq, ExitStack() as stack:
        for broker in (1, 2):
            mq.producer().send("test", "before", partition=Partition(broker, 0))
        reader = Reader(stack, mq, save_s=0.1)
        wait_until(lambda: len(reader.seen) == 2, "all came")
        frozen.process.send_signal(signal.SIGSTOP)
        stack.callback(frozen.process.send_signal, signal.SIGCONT)
        saved: set[str | None] = set()
        for number in range(10):  # whatever the consumer does when the broker stops, it does it again meanwhile
            mq.producer().send("test", b"%d" % number, partition=Partition(2, 0))
            wait_until(lambda count=number + 3: len(reader.seen) == count, "it comes", REQUEST_S)  # type: ignore[misc]
            before = len(saved)

            def is_saved(before: int = before) -> bool:
                saved.add(brokers.zookeeper.text("/consumers/g/offsets/test/2-0"))
                return len(saved) > before

            wait_until(is_saved, "its position is saved", REQUEST_S)


def test_the_offsets_of_a_java_consumer_are_read_and_go_on(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    with mq.consumer("g", ["test"], **FAST) as consumer:
        wait_until(lambda: len(consumer.assignment) == 4, "it has all")
        found = consumer.fetch(100, timeout=60)
    second = [one for one in found if one.partition == found[0].partition][1]
    zookeeper.put(f"/consumers/g/offsets/test/{second.partition}", f"-5468926877571731456-{second.offset}")
    with mq.consumer("g", ["test"], **FAST) as consumer:
        again = consumer.fetch(1, timeout=60)
        assert (again[0].partition, again[0].offset) == (second.partition, second.offset)


def test_a_partition_is_drained_before_it_is_released_and_reported(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    reported: list[tuple[TopicPartition, ...]] = []
    with mq.consumer(
        "g", ["test"], consumer_id="1", on_revoked=lambda places: reported.append(tuple(places)), **FAST
    ) as one:
        wait_until(lambda: len(one.assignment) == 4, "it has all")
        found = some_of_all(one)
        with ExitStack() as stack:
            other = Reader(stack, mq, consumer_id="2")
            wait_until(lambda: zookeeper.text("/consumers/g/ids/g_2") is not None, "the other one joins")
            assert owners(zookeeper)["3-3"] == "g_1", "what is in hand is not given away"
            position = one.position(TopicPartition("test", found[-1].partition))
            while not reported:
                one.fetch(100, timeout=0.1)
            wait_until(lambda: other.share == ["3-2", "3-3"], "it is given away now")
            assert [[str(where) for where in places] for places in reported] == [["test/3-2", "test/3-3"]]
            assert position is not None
            assert not other.seen, "all was settled"


def test_a_reader_that_hangs_loses_its_partitions_in_the_end(mq: MetaQ) -> None:
    with mq.consumer("g", ["test"], consumer_id="1", auto_ack=False, **FAST | {"drain_s": 0.2}) as hangs:
        wait_until(lambda: len(hangs.assignment) == 4, "it has all")
        found = some_of_all(hangs)
        with ExitStack() as stack:
            other = Reader(stack, mq, consumer_id="2")
            wait_until(lambda: other.share == ["3-2", "3-3"], "the other one does not wait for ever")
            lost = next(one for one in found if one.partition.index == 3)
            with pytest.raises(PartitionLost, match="test/3-3"):
                lost.ack()
            next(one for one in found if one.partition.index == 0).ack()
            wait_until(lambda: lost.data in {one.data for one in other.seen}, "it is delivered again")


def test_two_programs_with_one_consumer_id(mq: MetaQ) -> None:
    with mq.consumer("g", ["test"], consumer_id="same", **FAST) as first:
        first.fetch(1, timeout=60)
        second = mq.consumer("g", ["test"], consumer_id="same", **FAST | {"session_s": 0.5})
        with pytest.raises(ConsumerIdInUse, match="'g_same' is running already"), second:
            second.fetch(1, timeout=60)
        assert len(first.assignment) == 4


def test_while_zookeeper_is_away_nothing_is_handed_out_or_repeated(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    with ExitStack() as stack:
        reader = Reader(stack, mq, session_s=SESSION_S)
        wait_until(lambda: len(reader.seen) == 100, "all came")
        zookeeper.server.kill()
        wait_until(lambda: reader.consumer.paused is not None, "the hand-out stops", SESSION_S * 5)
        mq.producer().send("test", b"while it is away")
        assert len(reader.seen) == 100
        zookeeper.server.start()
        wait_until(lambda: len(reader.seen) > 100, "it goes on")
        assert [one.data for one in reader.seen[100:]] == [b"while it is away"]


def test_a_session_counts_from_what_zookeeper_has_answered(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    with mq.consumer("g", ["test"], consumer_id="1", **EXPIRING) as consumer:
        consumer.fetch(1, timeout=60)
        membership, where = consumer._core._membership, TopicPartition("test", Partition(3, 0))  # type: ignore[attr-defined]
        first = membership.until_s(where)
        assert first <= time.monotonic() + SESSION_S
        wait_until(lambda: membership.until_s(where) > first + SESSION_S, "it is asked again and again")
        zookeeper.server.freeze()
        last = time.monotonic() + SESSION_S
        wait_until(lambda: time.monotonic() > last, "a session is over")
        assert membership.until_s(where) <= last
        assert consumer.fetch(timeout=0.1) == []
        zookeeper.server.thaw()
        wait_until(lambda: membership.until_s(where) > last, "it is a member again")


def end_session(consumer: GroupConsumer, zookeeper: ZooKeeperRoot) -> None:
    """End the consumer's session as if it had expired: somebody else closes it."""
    membership: Any = consumer._core._membership
    taken = KazooClient(zookeeper.server.address, timeout=SESSION_S, client_id=membership._client._client.client_id)
    taken.start(60)
    taken.stop()
    taken.close()


def test_after_a_lost_session_a_consumer_goes_on_without_repeats(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    with ExitStack() as stack:
        reader = Reader(stack, mq, consumer_id="1", save_s=1000)
        wait_until(lambda: len(reader.seen) == 100, "all came")
        before = reader.consumer._core._membership
        session: Any = before._registered_by  # type: ignore[attr-defined]
        end_session(reader.consumer, zookeeper)
        wait_until(lambda: before._registered_by != session, "it is a member again")  # type: ignore[attr-defined]
        wait_until(lambda: len(owners(zookeeper)) == 4 and reader.consumer.paused is None, "it owns all again")
        mq.producer().send("test", b"later")
        wait_until(lambda: len(reader.seen) > 100, "it goes on")
        assert [one.data for one in reader.seen[100:]] == [b"later"]


@pytest.mark.parametrize("deleted", ["/consumers/g/ids/g_1", "/consumers"])
def test_a_consumer_whose_nodes_are_deleted_joins_again(mq: MetaQ, zookeeper: ZooKeeperRoot, deleted: str) -> None:
    with ExitStack() as stack:
        reader = Reader(stack, mq, consumer_id="1", save_s=0.1)
        wait_until(lambda: len(reader.seen) == 100, "all came")
        at_once = zookeeper.client.transaction()  # else the consumer is a member again before the last one is deleted
        for node in reversed(zookeeper.dump(deleted)):
            at_once.delete(zookeeper.root + node.path)
        assert all(outcome is True for outcome in at_once.commit())
        wait_until(lambda: zookeeper.text("/consumers/g/ids/g_1") == "test", "it is a member again")
        wait_until(lambda: zookeeper.text("/consumers/g/owners/test/3-3") == "g_1", "it owns all again")
        where = mq.producer().send("test", b"later").partition
        wait_until(lambda: len(reader.seen) > 100, "it goes on")
        end = mq.cluster.lag("g", ["test"])[where.index].end
        saved = f"/consumers/g/offsets/test/{where}"
        wait_until(lambda: (zookeeper.text(saved) or "").endswith(f"-{end}"), "its position is saved")
        assert [one.data for one in reader.seen[100:]] == [b"later"]


def test_what_somebody_else_read_meanwhile_is_not_read_again(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    with mq.consumer("g", ["test"], consumer_id="1", auto_ack=False, **FAST | {"save_s": 1000}) as consumer:
        wait_until(lambda: len(consumer.assignment) == 4, "it has all")
        found = consumer.fetch(1, timeout=60)
        where = TopicPartition("test", found[0].partition)
        end = mq.cluster.lag("g", ["test"])[where.partition.index].end
        zookeeper.put(f"/consumers/g/offsets/test/{where.partition}", f"0-{end}")
        generation = consumer.generation
        end_session(consumer, zookeeper)
        wait_until(lambda: consumer.generation > generation and consumer.paused is None, "it joins again")
        assert consumer.position(where) == end
        with pytest.raises(PartitionLost):
            found[0].ack()


def test_a_partition_that_comes_back_goes_on_where_the_other_one_was(mq: MetaQ, zookeeper: ZooKeeperRoot) -> None:
    """Nothing of the first time is left: not its position, not what was fetched ahead, not its late commits."""
    where = TopicPartition("test", Partition(3, 3))
    with ExitStack() as stack:
        first = Reader(stack, mq, consumer_id="1")
        wait_until(lambda: len(first.seen) == 100, "all came")
        for number in range(2):
            with ExitStack() as inner:
                second = Reader(inner, mq, consumer_id="2")
                wait_until(lambda second=second: second.share == ["3-2", "3-3"], "the other one has it")
                mq.producer().send("test", b"away %d" % number, partition=where.partition)
                wait_until(
                    lambda second=second: any(one.data.startswith(b"away") for one in second.seen), "it reads there"
                )
            wait_until(lambda: len(first.share) == 4, "it comes back")
            mq.producer().send("test", b"back %d" % number, partition=where.partition)
            wait_until(
                lambda number=number: any(one.data == b"back %d" % number for one in first.seen), "it reads there again"
            )
    assert [one.data for one in first.seen[100:]] == [b"back 0", b"back 1"]
