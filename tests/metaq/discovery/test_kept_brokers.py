"""A directory that keeps the list of brokers: what is asked for again, and what is not."""

from __future__ import annotations

from fix_client import MemoryCluster

from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.kept_brokers import KeptBrokers
from metaq.model import Partition, TopicPartition
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
