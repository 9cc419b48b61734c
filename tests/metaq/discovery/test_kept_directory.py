"""A directory that keeps what it knows: what is asked for again, and what is not."""

from __future__ import annotations

import threading
import time

import pytest
from fix_client import MemoryCluster

from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.kept import LOOKED_UP_MAX, PLACES_S, KeptAnswer, KeptDirectory
from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError
from metaq.model import Address, Partition, TopicPartition
from metaq.protocols.text.commands import Stats
from metaq.testing.manual_clock import ManualClock
from metaq.testing.memory import MemoryBroker

WHERE = Partition(7, 0)


def asked(broker: MemoryBroker, *items: str) -> int:
    return sum(isinstance(command, Stats) and command.item in items for command in broker.commands)


def walks(broker: MemoryBroker) -> int:
    """How often the broker was asked for all of its partitions."""
    return asked(broker, "offsets", "incarnations")


def kept(cluster: MemoryCluster) -> KeptDirectory:
    return KeptDirectory(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool, 5.0)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker({"orders": 2}, broker_id=7)


@pytest.fixture
def cluster(broker: MemoryBroker) -> MemoryCluster:
    return MemoryCluster(broker)


def test_the_list_is_asked_for_again_when_it_is_old(cluster: MemoryCluster, broker: MemoryBroker) -> None:
    directory = kept(cluster)
    for _ in range(3):
        assert directory.brokers() == {7: cluster.addresses[0]}
    assert asked(broker, "") == 1
    cluster.transport.clock.advance(5.0)
    assert directory.brokers() == {7: cluster.addresses[0]}
    assert asked(broker, "") == 2


def test_places_are_kept_and_a_new_topic_is_asked_for(cluster: MemoryCluster, broker: MemoryBroker) -> None:
    directory, places = kept(cluster), {WHERE: cluster.addresses[0]}
    assert (directory.partitions("orders"), walks(broker)) == ({}, 1)
    broker.partition("orders", 0).append(b"x" * 15)
    assert (directory.partitions("orders"), directory.partitions("orders"), walks(broker)) == (places, places, 2)
    broker.partition("orders", 1)
    assert directory.partitions("orders") == places
    cluster.transport.clock.advance(PLACES_S)
    assert directory.partitions("orders").keys() == {WHERE, Partition(7, 1)}
    assert walks(broker) == 3


@pytest.mark.parametrize("is_bundled", [True, False], ids=["bundled", "java"])
def test_offsets_of_a_topic_are_new_and_need_no_walk(is_bundled: bool) -> None:
    broker = MemoryBroker({"orders": 2}, broker_id=7)
    if not is_bundled:
        broker.extensions = frozenset()
    cluster = MemoryCluster(broker)
    directory, plain = kept(cluster), FixedDirectory(cluster.addresses, cluster.pool)
    for index in (0, 1):
        broker.partition("orders", index).append(b"x" * 15)
    assert directory.partitions("orders")
    broker.partition("orders", 1).append(b"x" * 5)
    before = walks(broker)
    found = directory.available(["orders"])
    assert walks(broker) == before
    assert found == plain.available(["orders"])
    assert found[TopicPartition("orders", Partition(7, 1))].offsets.end == 20
    del broker.partitions["orders", 1]
    assert set(directory.available(["orders"])) == {TopicPartition("orders", WHERE)}


def test_topics_that_are_not_known_are_asked_for_together(cluster: MemoryCluster, broker: MemoryBroker) -> None:
    assert kept(cluster).available(["gone", "new", "old"]) == {}
    assert walks(broker) == 1


def test_offsets_of_many_partitions_are_of_one_walk() -> None:
    count = LOOKED_UP_MAX + 1
    broker = MemoryBroker({"orders": count}, broker_id=7)
    for index in range(count):
        broker.partition("orders", index).append(b"x" * 15)
    directory = kept(MemoryCluster(broker))
    assert len(directory.partitions("orders")) == count
    before = len(broker.commands)
    assert len(directory.available(["orders"])) == count
    assert len(broker.commands) - before < 5


def test_everything_else_is_asked_each_time(cluster: MemoryCluster, broker: MemoryBroker) -> None:
    directory = kept(cluster)
    assert directory.topics() == {"orders": []}
    broker.partition("orders", 0).append(b"x" * 15)
    assert directory.topics() == {"orders": [WHERE]}
    assert directory.writable("orders") == {Partition(7, index): cluster.addresses[0] for index in range(2)}
    assert set(directory.ends(["orders"])) == set(directory.available()) == {TopicPartition("orders", WHERE)}
    assert directory.available_now(["orders"]) == (directory.available(["orders"]), {})


def test_what_is_kept_is_of_the_brokers_that_are_there() -> None:
    brokers = [MemoryBroker({"orders": 1}, broker_id=number) for number in (1, 2)]
    for each in brokers:
        each.partition("orders", 0)
    cluster, away = MemoryCluster(*brokers), dict[Address, MetaqError]()
    first, second = cluster.addresses
    directory = KeptDirectory(FixedDirectory(cluster.addresses, cluster.pool, away=lambda: away), cluster.pool, 5.0)
    whole = {1: first, 2: second}, {Partition(1, 0): first, Partition(2, 0): second}
    assert (directory.brokers(), directory.partitions("orders")) == whole
    away[second] = ConnectionFailed(second, "connect", "it hangs")
    assert (directory.brokers(), directory.partitions("orders")) == ({1: first}, {Partition(1, 0): first})
    assert directory.left_out == {second}
    away.clear()
    assert (directory.brokers(), directory.partitions("orders")) == whole


def test_who_has_waited_for_a_question_that_failed_does_not_ask_again() -> None:
    began, late = threading.Event(), threading.Event()
    asked_for: list[int] = []
    failures: list[DeadlineExceeded] = []

    def ask() -> int:
        asked_for.append(1)
        began.set()
        assert late.wait(60)
        raise DeadlineExceeded("127.0.0.1:8123", "stats", 8.0)

    hung = KeptAnswer(ask, lambda took_s: 5.0, ManualClock())

    def look() -> None:
        try:
            hung.get(lambda answer: True)
        except DeadlineExceeded as error:
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for each in threads:
        each.start()
    assert began.wait(60)
    time.sleep(0.2)  # so that most of them wait
    late.set()
    for each in threads:
        each.join(60)
    assert len(failures) == 8
    assert len(asked_for) < 8
