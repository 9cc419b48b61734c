"""Directories that leave out servers which are away: answers are of the others, and of none if none is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fix_client import MemoryCluster

from metaq.backends.rocketmq.errors import NameServersAway
from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import ConnectionFailed, MetaqError, TopicNotFound
from metaq.model import Address, Partition, TopicPartition
from metaq.testing.memory import MemoryBroker
from metaq.testing.rocketmq_server import ScriptedCluster

A0, B0 = Partition("broker-a", 0), Partition("broker-b", 0)


@pytest.fixture
def away() -> dict[Address, MetaqError]:
    return {}


def note(away: dict[Address, MetaqError], *addresses: Address) -> None:
    away.update({address: ConnectionFailed(address, "connect", "it hangs") for address in addresses})


@pytest.fixture
def cluster() -> MemoryCluster:
    brokers = [MemoryBroker({"orders": 1}, broker_id=1), MemoryBroker({"orders": 1, "bills": 1}, broker_id=2)]
    for broker in brokers:
        broker.partition("orders", 0).append(b"x" * 15)
    return MemoryCluster(*brokers)


@pytest.fixture
def directory(cluster: MemoryCluster, away: dict[Address, MetaqError]) -> FixedDirectory:
    return FixedDirectory(cluster.addresses, cluster.pool, away=lambda: away)


QUESTIONS: dict[str, Callable[[FixedDirectory], object]] = {
    "brokers": lambda it: it.brokers(),
    "topics": lambda it: it.topics(),
    "partitions": lambda it: it.partitions("orders"),
    "writable": lambda it: it.writable("orders"),
    "ends": lambda it: it.ends(["orders"]),
    "available": lambda it: it.available(),
}


def test_answers_are_of_the_others(
    cluster: MemoryCluster, directory: FixedDirectory, away: dict[Address, MetaqError]
) -> None:
    first, second = cluster.addresses
    note(away, second)
    cluster.brokers[1].kill()
    where = Partition(1, 0)
    assert directory.brokers() == {1: first}
    assert directory.topics() == {"orders": [where]}
    assert directory.partitions("orders") == directory.writable("orders") == {where: first}
    assert set(directory.ends(["orders"])) == set(directory.available()) == {TopicPartition("orders", where)}
    assert directory.addresses() == [first, second]
    assert directory.left_out == {second}
    with pytest.raises(TopicNotFound):
        directory.writable("bills")
    away.clear()
    cluster.brokers[1].start()
    assert directory.brokers() == {1: first, 2: second}


@pytest.mark.parametrize("name", QUESTIONS)
def test_where_none_is_left_its_error_is_raised(
    cluster: MemoryCluster, directory: FixedDirectory, away: dict[Address, MetaqError], name: str
) -> None:
    note(away, *cluster.addresses)
    with pytest.raises(ConnectionFailed, match="it hangs"):
        QUESTIONS[name](directory)


@pytest.fixture
def rocketmq() -> Iterator[ScriptedCluster]:
    with ScriptedCluster({"broker-a": (), "broker-b": (1,)}, name_server_count=2) as made:
        made.create_topic("orders")
        yield made


@pytest.fixture
def routes(rocketmq: ScriptedCluster, away: dict[Address, MetaqError]) -> Iterator[NameServerDirectory]:
    pool = SessionPool()
    yield NameServerDirectory(rocketmq.name_servers, pool, away=lambda: away)
    pool.close()


def test_queues_of_a_broker_without_an_address_are_left_out(
    rocketmq: ScriptedCluster, routes: NameServerDirectory, away: dict[Address, MetaqError]
) -> None:
    b = rocketmq.broker("broker-b")
    assert routes.queues("orders") == [A0, B0]
    note(away, b.address())
    assert routes.queues("orders") == [A0, B0], "a slave is left"
    assert routes.read_address("broker-b") == b.address(1)
    assert list(routes.masters()) == ["broker-a"]
    assert routes.left_out == {b.address()}
    note(away, b.address(1))
    assert routes.queues("orders") == routes.writable("orders") == [A0]
    assert list(routes.brokers()) == ["broker-a"]
    with pytest.raises(ConnectionFailed, match="it hangs"):
        routes.write_address("broker-b")
    assert routes.addresses() >= {*rocketmq.name_servers, b.address(), b.address(1)}
    note(away, rocketmq.broker("broker-a").address())
    for ask in (routes.queues, routes.writable):
        with pytest.raises(ConnectionFailed, match="it hangs"):
            ask("orders")
    with pytest.raises(ConnectionFailed, match="it hangs"):
        routes.masters()


def test_a_slave_that_is_away_takes_nothing_from_answers(
    rocketmq: ScriptedCluster, routes: NameServerDirectory, away: dict[Address, MetaqError]
) -> None:
    assert routes.masters()
    note(away, rocketmq.broker("broker-b").address(1))
    assert routes.left_out == set()
    assert routes.queues("orders") == [A0, B0]


def test_name_servers_that_are_away_are_not_asked(
    rocketmq: ScriptedCluster, routes: NameServerDirectory, away: dict[Address, MetaqError]
) -> None:
    rocketmq.stop_name_server(0)
    note(away, rocketmq.name_servers[0])
    assert routes.queues("orders") == [A0, B0]
    note(away, rocketmq.name_servers[1])
    with pytest.raises(NameServersAway, match="it hangs"):
        routes.queues("bills")
