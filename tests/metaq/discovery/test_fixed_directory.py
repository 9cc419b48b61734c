"""The fixed directory: brokers in memory are asked who they are and what they have."""

from __future__ import annotations

import pytest
from fix_client import MemoryCluster

from metaq.discovery.fixed import FixedDirectory
from metaq.errors import ConnectionFailed, DirectoryConflict, ProtocolError, TopicNotFound
from metaq.model import Address, OffsetRange, Partition, PartitionState, TopicPartition
from metaq.protocols.text.commands import Stats, Version
from metaq.testing.memory import MemoryBroker


@pytest.fixture
def cluster() -> MemoryCluster:
    first = MemoryBroker({"orders": 2, "quiet": 1, "wild*": 9}, broker_id=7, segment_bytes_max=10)
    second = MemoryBroker({"orders": 1}, broker_id=2)
    first.partition("orders", 1).append(b"x" * 15)
    first.partition("orders", 1).append(b"x" * 5)
    first.partition("orders", 1).drop_segments(1)
    first.partition("old", 0)
    second.partition("orders", 0).append(b"x" * 30)
    return MemoryCluster(first, second)


@pytest.fixture
def directory(cluster: MemoryCluster) -> FixedDirectory:
    return FixedDirectory(cluster.addresses, cluster.pool)


def test_brokers_by_id(cluster: MemoryCluster, directory: FixedDirectory) -> None:
    assert directory.brokers() == {7: cluster.addresses[0], 2: cluster.addresses[1]}


def test_topics_with_the_partitions_that_have_a_store(directory: FixedDirectory) -> None:
    assert directory.topics() == {"old": [Partition(7, 0)], "orders": [Partition(2, 0), Partition(7, 1)], "quiet": []}


def test_where_to_read(cluster: MemoryCluster, directory: FixedDirectory) -> None:
    first, second = cluster.addresses
    assert list(directory.partitions("orders").items()) == [(Partition(2, 0), second), (Partition(7, 1), first)]
    assert directory.partitions("old") == {Partition(7, 0): first}
    assert directory.partitions("quiet") == directory.partitions("nosuch") == {}


def test_where_to_write(cluster: MemoryCluster, directory: FixedDirectory) -> None:
    first, second = cluster.addresses
    assert list(directory.writable("orders").items()) == [
        (Partition(2, 0), second),
        (Partition(7, 0), first),
        (Partition(7, 1), first),
    ]
    assert directory.writable("quiet") == {Partition(7, 0): first}
    assert directory.writable("wild-west") == {Partition(7, 0): first}  # a pattern gives the system's number


def test_a_topic_on_disk_that_is_not_configured_is_not_writable(directory: FixedDirectory) -> None:
    with pytest.raises(TopicNotFound) as unknown:
        directory.writable("old")
    assert str(unknown.value) == (
        "topic 'old' does not exist on 127.0.0.1:8123, 127.0.0.1:8124; topics there: old, orders, quiet"
    )


def test_a_slave_serves_reads_only(cluster: MemoryCluster, directory: FixedDirectory) -> None:
    cluster.brokers[1].slave = True
    assert Partition(2, 0) in directory.partitions("orders")
    assert list(directory.writable("orders")) == [Partition(7, 0), Partition(7, 1)]


def test_ends_of_the_topics_asked_for(directory: FixedDirectory) -> None:
    assert directory.ends(["orders", "quiet"]) == {
        TopicPartition("orders", Partition(7, 1)): OffsetRange(15, 20),
        TopicPartition("orders", Partition(2, 0)): OffsetRange(0, 30),
    }
    assert directory.ends([]) == {}


def test_each_question_is_one_round_trip_over_a_pooled_connection(
    cluster: MemoryCluster, directory: FixedDirectory
) -> None:
    directory.ends(["orders"])
    directory.topics()
    assert cluster.brokers[0].commands == [
        Stats("", 1),
        Stats("offsets", 2),
        Stats("", 3),
        Stats("topics", 4),
        Stats("offsets", 5),
    ]
    assert cluster.transport.connections == 2


def test_an_address_given_twice_is_asked_once(cluster: MemoryCluster) -> None:
    directory = FixedDirectory([*cluster.addresses, *cluster.addresses], cluster.pool)
    assert len(directory.brokers()) == 2


def test_two_brokers_with_one_id_are_refused(cluster: MemoryCluster, directory: FixedDirectory) -> None:
    cluster.brokers[1].broker_id = 7
    with pytest.raises(DirectoryConflict) as conflict:
        directory.ends(["orders"])
    assert str(conflict.value) == (
        "127.0.0.1:8123 and 127.0.0.1:8124 report the same broker id, 7; name each broker once, with its own brokerId"
    )


def test_a_broker_that_is_away_is_an_error_that_names_it(cluster: MemoryCluster, directory: FixedDirectory) -> None:
    directory.brokers()
    cluster.brokers[1].kill()
    with pytest.raises(ConnectionFailed, match=r"^broker 127\.0\.0\.1:8124: connect failed"):
        directory.partitions("orders")
    cluster.brokers[1].start()
    assert len(directory.partitions("orders")) == 2


@pytest.mark.parametrize("item", ["", "offsets", "config"])
def test_an_answer_that_makes_no_sense_names_the_broker(
    cluster: MemoryCluster, directory: FixedDirectory, item: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensible = cluster.brokers[0]._stats
    monkeypatch.setattr(cluster.brokers[0], "_stats", lambda asked: "what?" if asked == item else sensible(asked))
    with pytest.raises(ProtocolError, match=r"^broker 127\.0\.0\.1:8123: the answer to stats"):
        directory.writable("orders") if item == "config" else directory.ends(["orders"])


def test_no_address_is_refused(cluster: MemoryCluster) -> None:
    with pytest.raises(ValueError, match="at least one broker"):
        FixedDirectory([], cluster.pool)


def test_a_broker_on_another_port_is_not_guessed(cluster: MemoryCluster) -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:9999"):
        FixedDirectory([Address("127.0.0.1", 9999)], cluster.pool).brokers()


def test_what_is_available_and_in_which_incarnation(cluster: MemoryCluster, directory: FixedDirectory) -> None:
    cluster.brokers[1].extensions = frozenset()  # a Java broker
    first = cluster.brokers[0].partition("orders", 1)
    assert directory.available(["orders", "quiet"]) == {
        TopicPartition("orders", Partition(7, 1)): PartitionState(OffsetRange(15, 20), first.incarnation),
        TopicPartition("orders", Partition(2, 0)): PartitionState(OffsetRange(0, 30), None),
    }
    assert directory.available([]) == {}


def test_a_recreated_partition_is_another_one(cluster: MemoryCluster, directory: FixedDirectory) -> None:
    where = TopicPartition("orders", Partition(2, 0))
    before = directory.available(["orders"])[where]
    cluster.brokers[1].recreate("orders", 0).append(b"x" * 30)
    after = directory.available(["orders"])[where]
    assert before.offsets == after.offsets == OffsetRange(0, 30)
    assert before.incarnation != after.incarnation


def test_range_and_incarnation_come_in_one_answer(cluster: MemoryCluster, directory: FixedDirectory) -> None:
    directory.available(["orders"])
    directory.available(["orders"])
    assert cluster.brokers[0].commands == [
        Version(1),
        Stats("", 2),
        Stats("incarnations", 3),
        Stats("incarnations", 4),
    ]
