"""A directory that keeps the list of brokers: what is asked for again, and what is not."""

from __future__ import annotations

import threading
import time

from fix_client import MemoryCluster

from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.kept_brokers import KeptBrokers
from metaq.errors import DeadlineExceeded
from metaq.model import Address, Partition, TopicPartition
from metaq.protocols.text.commands import Stats
from metaq.testing.manual_clock import ManualClock
from metaq.testing.memory import MemoryBroker


def asked(broker: MemoryBroker) -> int:
    return sum(isinstance(command, Stats) and command.item == "" for command in broker.commands)


def test_the_list_is_asked_for_again_when_it_is_old() -> None:
    clock, broker = ManualClock(), MemoryBroker({"orders": 2}, broker_id=7)
    cluster = MemoryCluster(broker)
    directory = KeptBrokers(FixedDirectory(cluster.addresses, cluster.pool), 5.0, clock)
    for _ in range(3):
        assert directory.brokers() == {7: cluster.addresses[0]}
    assert asked(broker) == 1
    clock.advance(5.0)
    assert directory.brokers() == {7: cluster.addresses[0]}
    assert asked(broker) == 2


def test_everything_else_is_asked_each_time() -> None:
    broker = MemoryBroker({"orders": 2}, broker_id=7)
    cluster = MemoryCluster(broker)
    directory = KeptBrokers(FixedDirectory(cluster.addresses, cluster.pool), 5.0, ManualClock())
    where = Partition(7, 0)
    assert directory.topics() == {"orders": []}
    assert directory.partitions("orders") == {}
    broker.partition("orders", 0).append(b"x" * 15)
    assert directory.topics() == {"orders": [where]}
    assert directory.partitions("orders") == {where: cluster.addresses[0]}
    assert directory.writable("orders") == {Partition(7, index): cluster.addresses[0] for index in range(2)}
    assert set(directory.ends(["orders"])) == set(directory.available()) == {TopicPartition("orders", where)}
    assert directory.available_now(["orders"]) == (directory.available(["orders"]), {})


class HungDirectory(FixedDirectory):
    """One whose broker does not answer, which takes until it is told so."""

    asked = 0

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster.addresses, cluster.pool)
        self.began, self.late = threading.Event(), threading.Event()

    def brokers(self) -> dict[int, Address]:
        self.asked += 1
        self.began.set()
        assert self.late.wait(60)
        raise DeadlineExceeded("127.0.0.1:8123", "stats", 8.0)


def test_who_has_waited_for_a_question_that_failed_does_not_ask_again() -> None:
    cluster = MemoryCluster(MemoryBroker({"orders": 2}, broker_id=7))
    hung = HungDirectory(cluster)
    directory = KeptBrokers(hung, 5.0, ManualClock())
    failures: list[DeadlineExceeded] = []

    def look() -> None:
        try:
            directory.brokers()
        except DeadlineExceeded as error:
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for each in threads:
        each.start()
    assert hung.began.wait(60)
    time.sleep(0.2)  # so that most of them wait
    hung.late.set()
    for each in threads:
        each.join(60)
    assert len(failures) == 8
    assert hung.asked < 8
