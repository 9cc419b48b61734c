"""Finding brokers in a real ZooKeeper. The brokers are in memory, their nodes are written as MetaQ writes them."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from fix_broker import wait_until
from fix_client import TIMEOUTS, MemoryCluster
from fix_zookeeper import ZooKeeperRoot

from metaq.backends.metaq.pair_members import PairFacts
from metaq.backends.metaq.pool import SessionPool
from metaq.client.producer import Producer
from metaq.discovery.refreshed import AWAY_PAUSE_S, CACHE_AGE_S_MAX, REFRESH_WAIT_S
from metaq.discovery.zk_cache import AVOID_S, FORGET_S, TreeCache
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.discovery.zookeeper import ZooKeeperDirectory
from metaq.errors import (
    ConnectionFailed,
    MasterMissing,
    MetaqError,
    NotPairMaster,
    TopicNotFound,
    ZooKeeperAway,
    ZooKeeperRefused,
)
from metaq.model import Address, OffsetRange, Partition, PartitionState, TopicPartition
from metaq.net.retry import ONCE, election_policy
from metaq.testing.manual_clock import ManualClock
from metaq.testing.memory import MemoryBroker, MemoryTransport

pytestmark = [pytest.mark.process, pytest.mark.slow]

MASTER_7, MASTER_2, SLAVE_2 = (Address("127.0.0.1", port) for port in (8123, 8124, 8125))


class Tree:
    """MetaQ's nodes, written by hand."""

    def __init__(self, zookeeper: ZooKeeperRoot) -> None:
        self.zookeeper = zookeeper

    def broker(self, broker_id: int, member: str, address: Address) -> None:
        if member == "master":
            self.zookeeper.put(f"/brokers/ids/{broker_id}", f"meta://{address}")
            self.zookeeper.put(f"/brokers/ids/{broker_id}/master_config_checksum", "17", ephemeral=True)
        self.zookeeper.put(f"/brokers/ids/{broker_id}/{member}", f"meta://{address}", ephemeral=True)

    def topic(self, name: str, registrant: str, count: int, *trees: str) -> None:
        self.zookeeper.put(f"/brokers/topics/{name}/{registrant}", str(count), ephemeral=True)
        for tree in trees or ("pub", "sub"):
            text = f'{{"numParts":{count},"broker":"{registrant}"}}'
            self.zookeeper.put(f"/brokers/topics-{tree}/{name}/{registrant}", text, ephemeral=True)

    def gone(self, path: str) -> None:
        self.zookeeper.client.delete(self.zookeeper.root + path, recursive=True)


@pytest.fixture
def tree(zookeeper: ZooKeeperRoot) -> Tree:
    """Broker 7, and broker 2 with a slave."""
    tree = Tree(zookeeper)
    tree.broker(7, "master", MASTER_7)
    tree.broker(2, "master", MASTER_2)
    tree.broker(2, "slave0", SLAVE_2)
    tree.topic("orders", "7-m", 2)
    tree.topic("orders", "2-m", 1)
    tree.topic("orders", "2-s0", 1)
    tree.topic("quiet", "7-m", 1)
    tree.topic("wild*", "7-m", 9)
    return tree


@pytest.fixture
def cluster() -> MemoryCluster:
    """The same brokers, and the slave of the second."""
    first = MemoryBroker({"orders": 2, "quiet": 1, "wild*": 9}, broker_id=7)
    second = MemoryBroker({"orders": 1}, broker_id=2)
    slave = MemoryBroker({"orders": 1}, broker_id=2, slave=True)
    first.partition("orders", 1).append(b"x" * 15)
    second.partition("orders", 0).append(b"x" * 30)
    slave.partition("orders", 0).append(b"x" * 20)
    return MemoryCluster(first, second, slave)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(zookeeper: ZooKeeperRoot, clock: ManualClock) -> TreeCache:
    return TreeCache(ZooKeeperAddress.parse(zookeeper.option), 10.0, clock)


@pytest.fixture
def directory(tree: Tree, memory: TreeCache, cluster: MemoryCluster) -> ZooKeeperDirectory:
    assert cluster.addresses == [MASTER_7, MASTER_2, SLAVE_2]
    return ZooKeeperDirectory(memory, cluster.pool)


def test_what_it_reports(directory: ZooKeeperDirectory, cluster: MemoryCluster) -> None:
    ours, other = Partition(7, 1), Partition(2, 0)
    assert directory.brokers() == {2: MASTER_2, 7: MASTER_7}
    assert directory.topics() == {"orders": [other, ours], "quiet": []}
    assert list(directory.partitions("orders").items()) == [(other, MASTER_2), (ours, MASTER_7)]
    assert directory.partitions("quiet") == directory.partitions("nosuch") == {}
    assert directory.ends(["orders", "quiet"]) == {
        TopicPartition("orders", other): OffsetRange(0, 30),
        TopicPartition("orders", ours): OffsetRange(0, 15),
    }
    incarnation = cluster.brokers[0].partition("orders", 1).incarnation
    assert directory.available()[TopicPartition("orders", ours)] == PartitionState(OffsetRange(0, 15), incarnation)
    assert directory.available_now(["orders"]) == (directory.available(["orders"]), {})


def test_where_to_write(directory: ZooKeeperDirectory) -> None:
    assert list(directory.writable("orders").items()) == [
        (Partition(2, 0), MASTER_2),
        (Partition(7, 0), MASTER_7),
        (Partition(7, 1), MASTER_7),
    ]
    assert directory.writable("quiet") == {Partition(7, 0): MASTER_7}


def test_a_topic_that_only_a_pattern_admits_is_asked_for(directory: ZooKeeperDirectory) -> None:
    assert directory.writable("wild-west") == {Partition(7, 0): MASTER_7}, "the system's number, not the pattern's"


def test_a_written_topic_of_a_pattern_is_asked_for_at_other_brokers(
    tree: Tree, directory: ZooKeeperDirectory, cluster: MemoryCluster
) -> None:
    tree.topic("wild*", "2-m", 1)
    tree.topic("wild-west", "2-m", 1)
    assert list(directory.writable("wild-west")) == [Partition(2, 0), Partition(7, 0)]


def test_a_topic_that_nobody_accepts(directory: ZooKeeperDirectory, memory: TreeCache) -> None:
    with pytest.raises(TopicNotFound) as unknown:
        directory.writable("nosuch")
    assert str(unknown.value) == (f"topic 'nosuch' does not exist on {memory.address}; topics there: orders, quiet")


def test_a_slave_serves_reads_when_its_master_is_gone(
    tree: Tree, directory: ZooKeeperDirectory, clock: ManualClock, cluster: MemoryCluster
) -> None:
    assert directory.brokers()[2] == MASTER_2
    tree.gone("/brokers/ids/2/master")
    tree.gone("/brokers/topics-pub/orders/2-m")
    cluster.brokers[1].kill()
    clock.sleep(CACHE_AGE_S_MAX)
    assert directory.brokers() == {2: SLAVE_2, 7: MASTER_7}
    assert directory.ends(["orders"])[TopicPartition("orders", Partition(2, 0))] == OffsetRange(0, 20)
    assert list(directory.writable("orders")) == [Partition(7, 0), Partition(7, 1)]


def test_a_slave_serves_reads_while_its_dead_master_is_still_registered(
    directory: ZooKeeperDirectory, cluster: MemoryCluster, clock: ManualClock
) -> None:
    cluster.brokers[1].kill()
    where = TopicPartition("orders", Partition(2, 0))
    assert directory.available(["orders"])[where].offsets == OffsetRange(0, 20)
    assert directory.brokers() == {2: SLAVE_2, 7: MASTER_7}
    found, away = directory.available_now(["orders"])
    assert (found[where].offsets, away) == (OffsetRange(0, 20), {})
    assert directory.masters() == {2: MASTER_2, 7: MASTER_7}
    cluster.brokers[1].start()
    clock.sleep(AVOID_S)
    assert directory.brokers()[2] == MASTER_2


def test_reachable_brokers_are_read_from_the_slave_at_once(
    directory: ZooKeeperDirectory, cluster: MemoryCluster
) -> None:
    cluster.brokers[1].kill()
    found, away = directory.available_now(["orders"])
    assert (found[TopicPartition("orders", Partition(2, 0))].offsets, away) == (OffsetRange(0, 20), {})


def test_a_broker_that_crashed_is_away_not_empty(
    tree: Tree, directory: ZooKeeperDirectory, cluster: MemoryCluster
) -> None:
    for node in ("/ids/7/master", "/ids/7/master_config_checksum", "/topics-sub/orders/7-m", "/topics/orders/7-m"):
        tree.gone(f"/brokers{node}")
    cluster.brokers[0].kill()
    with pytest.raises(ConnectionFailed, match=r"broker 127\.0\.0\.1:8123"):
        directory.available(["orders"])
    available, away = directory.available_now(["orders"])
    assert (list(available), list(away)) == ([TopicPartition("orders", Partition(2, 0))], [MASTER_7])
    assert list(directory.writable("orders")) == [Partition(2, 0)]


def test_a_broker_that_left_is_asked_for_a_while(
    tree: Tree, directory: ZooKeeperDirectory, clock: ManualClock, cluster: MemoryCluster
) -> None:
    assert 7 in directory.brokers()
    tree.gone("/brokers/ids/7")
    cluster.brokers[0].kill()
    clock.sleep(CACHE_AGE_S_MAX)
    with pytest.raises(ConnectionFailed, match=r"broker 127\.0\.0\.1:8123"):
        directory.partitions("orders")
    clock.sleep(FORGET_S)
    assert list(directory.partitions("orders")) == [Partition(2, 0)]


def test_a_broker_of_ours_that_stopped_stays_known(
    tree: Tree, directory: ZooKeeperDirectory, cluster: MemoryCluster, zookeeper: ZooKeeperRoot
) -> None:
    tree.gone("/brokers/ids/2")
    tree.gone("/brokers/topics-pub/orders/2-m")
    zookeeper.put("/members/2", f"meta://{MASTER_2}")
    cluster.brokers[1].kill()
    assert directory.brokers() == directory.masters() == {2: MASTER_2, 7: MASTER_7}
    with pytest.raises(ConnectionFailed, match=r"broker 127\.0\.0\.1:8124"):
        directory.topics()
    assert list(directory.writable("orders")) == [Partition(7, 0), Partition(7, 1)]


def test_masters_are_never_slaves(tree: Tree, directory: ZooKeeperDirectory) -> None:
    tree.gone("/brokers/ids/2/master")
    assert directory.brokers()[2] == SLAVE_2
    assert directory.masters()[2] == MASTER_2, "where it was"


def test_a_broker_that_moved_is_found_after_a_failure(
    tree: Tree, directory: ZooKeeperDirectory, cluster: MemoryCluster
) -> None:
    assert directory.brokers()[2] == MASTER_2
    cluster.brokers[1].kill()
    tree.broker(2, "master", SLAVE_2)
    with pytest.raises(ConnectionFailed):
        directory.ends(["orders"])
    assert directory.brokers()[2] == SLAVE_2, "long before the last look is too old"


def test_what_is_not_for_readers_is_not_seen(tree: Tree, directory: ZooKeeperDirectory, cluster: MemoryCluster) -> None:
    cluster.brokers[0].topics["secret"] = 1
    cluster.brokers[0].partition("secret", 0).append(b"x")
    tree.topic("secret", "7-m", 1, "pub")
    assert "secret" not in directory.topics()
    assert directory.partitions("secret") == directory.ends(["secret"]) == directory.available(["secret"]) == {}
    assert list(directory.writable("secret")) == [Partition(7, 0)]


def test_the_last_map_stands_while_zookeeper_is_away(
    directory: ZooKeeperDirectory, clock: ManualClock, zookeeper: ZooKeeperRoot, caplog: pytest.LogCaptureFixture
) -> None:
    before = directory.available(["orders"]), directory.writable("orders"), directory.brokers()
    zookeeper.server.freeze()
    with caplog.at_level(logging.WARNING, "metaq"):
        for _ in range(3):
            clock.sleep(max(CACHE_AGE_S_MAX, AWAY_PAUSE_S))
            assert (directory.available(["orders"]), directory.writable("orders"), directory.brokers()) == before
        began_s = time.monotonic()
        for _ in range(100):
            clock.sleep(max(CACHE_AGE_S_MAX, AWAY_PAUSE_S))
            assert directory.brokers() == before[2]
        assert time.monotonic() - began_s < 50 * REFRESH_WAIT_S, "only the first failure is waited for"
        zookeeper.server.thaw()

        def is_back() -> bool:
            clock.sleep(AWAY_PAUSE_S)
            assert directory.brokers() == before[2]
            return "is back" in caplog.text

        wait_until(is_back, "a thread has looked again")
    reported = [record.getMessage() for record in caplog.records if record.name.startswith("metaq")]
    assert reported == [
        f"ZooKeeper at {zookeeper.server.address} does not answer. Continuing with the brokers as last known",
        f"ZooKeeper at {zookeeper.server.address} is back",
    ]


def test_without_zookeeper_from_the_start_there_is_no_map(cluster: MemoryCluster) -> None:
    directory = ZooKeeperDirectory(TreeCache(ZooKeeperAddress("127.0.0.1:1"), 60.0), cluster.pool)
    began_s = time.monotonic()
    with pytest.raises(
        ZooKeeperAway, match=r"ZooKeeper at 127\.0\.0\.1:1 cannot be reached: the connection was refused"
    ):
        directory.available(["orders"])
    assert time.monotonic() - began_s < 50, "a refusal is not waited for for 60 s"


def test_a_zookeeper_that_does_not_answer_from_the_start(cluster: MemoryCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]}"
        directory = ZooKeeperDirectory(TreeCache(ZooKeeperAddress(hosts), 0.2), cluster.pool)
        with pytest.raises(ZooKeeperAway, match=r"cannot be reached: no connection within 0\.2"):
            directory.available(["orders"])


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("/brokers/ids/7/master", "nonsense", "broker address 'nonsense': expected host:port"),
        ("/brokers/topics-pub/orders/7-m", "many", "'many' is not a number of partitions"),
    ],
)
def test_nodes_that_make_no_sense(path: str, text: str, reason: str, tree: Tree, directory: ZooKeeperDirectory) -> None:
    tree.zookeeper.put(path, text)
    with pytest.raises(ZooKeeperRefused, match=reason) as refused:
        directory.writable("orders")
    assert refused.value.path == tree.zookeeper.root + path


def test_nodes_of_others_are_passed_over(tree: Tree, directory: ZooKeeperDirectory) -> None:
    tree.zookeeper.put("/brokers/ids/readme", "hello")
    tree.zookeeper.put("/brokers/ids/9/slavery", "hello")
    tree.zookeeper.put("/brokers/topics-pub/orders/7", "hello")
    assert directory.brokers() == {2: MASTER_2, 7: MASTER_7}
    assert len(directory.writable("orders")) == 3


def test_an_empty_zookeeper(memory: TreeCache, cluster: MemoryCluster) -> None:
    directory = ZooKeeperDirectory(memory, cluster.pool)
    assert directory.brokers() == directory.topics() == directory.available() == {}
    with pytest.raises(TopicNotFound):
        directory.writable("orders")


PAIR = """{"version": 1, "epoch": %d, "master": "%s", "inSync": ["a"], "members": {
    "a": {"address": "127.0.0.1:8124", "boot": "1"}, "b": {"address": "127.0.0.1:8125", "boot": "1"}}}"""


@pytest.fixture
def pair(tree: Tree, cluster: MemoryCluster, memory: TreeCache) -> MemoryCluster:
    """Broker 2 is a pair, of which nobody is registered; its first member was elected last, and is away."""
    tree.zookeeper.put("/pairs/2", PAIR % (4, "a"))
    tree.zookeeper.put("/members/2/topics", '["orders", "rare*"]')
    for path in ("/ids/2/master", "/ids/2/slave0", "/topics-pub/orders/2-m", "/topics-pub/orders/7-m"):
        tree.gone(f"/brokers{path}")
    for number, other in ((1, SLAVE_2), (2, MASTER_2)):
        cluster.brokers[number].slave = False
        cluster.brokers[number].pair = PairFacts(other, False, 4)
    cluster.brokers[1].kill()
    return cluster


class EventfulClock(ManualClock):
    """A clock by which something happens when a second has been slept."""

    def __init__(self, event: Callable[[], None]) -> None:
        super().__init__()
        self._event, self._at_s = event, self.monotonic() + 1

    def sleep(self, seconds: float) -> None:
        is_before = self.monotonic() < self._at_s
        super().sleep(seconds)
        if is_before and self.monotonic() >= self._at_s:
            self._event()


def elect(tree: Tree, pair: MemoryCluster) -> None:
    """The second member is elected, and registers."""
    pair.brokers[2].pair = PairFacts(MASTER_2, True, 5)
    tree.broker(2, "master", SLAVE_2)
    tree.topic("orders", "2-m", 1)


def test_a_topic_whose_broker_has_no_master_now_is_waited_for(
    tree: Tree, pair: MemoryCluster, memory: TreeCache
) -> None:
    now, patient = (ZooKeeperDirectory(memory, pair.pool, each) for each in (ONCE, election_policy(TIMEOUTS)))
    text = (
        f"topic 'orders': no master of broker 2 (127.0.0.1:8124 or 127.0.0.1:8125) is registered in ZooKeeper at "
        f"{memory.address} at the moment"
    )
    with pytest.raises(MasterMissing) as missing:
        now.writable("orders")
    assert str(missing.value) == text
    assert missing.value.retryable
    with pytest.raises(MasterMissing, match="topic 'rare-one'"):
        now.writable("rare-one")
    with pytest.raises(NotPairMaster, match=r"broker 127\.0\.0\.1:8124 refused stats: no master of its pair is found"):
        now.ends(["orders"])
    began_s = pair.pool.clock.monotonic()
    for ask in (patient.writable, lambda topic: patient.ends([topic])):
        with pytest.raises(MetaqError):
            ask("orders")
    waited_s = pair.pool.clock.monotonic() - began_s
    assert waited_s == pytest.approx(2 * TIMEOUTS.request_s, abs=2), "each for one request"
    with pytest.raises(TopicNotFound):
        patient.writable("nosuch")
    assert pair.pool.clock.monotonic() - began_s == waited_s, "a topic that does not exist is not waited for"


def test_a_client_that_begins_without_a_master_finds_the_next_one(
    tree: Tree, pair: MemoryCluster, memory: TreeCache
) -> None:
    clock = EventfulClock(lambda: elect(tree, pair))
    pool = SessionPool(TIMEOUTS, MemoryTransport(pair.transport.brokers, clock), clock)
    directory = ZooKeeperDirectory(memory, pool, election_policy(TIMEOUTS))
    assert directory.writable("orders") == {Partition(2, 0): SLAVE_2}
    assert directory.ends(["orders"])[TopicPartition("orders", Partition(2, 0))] == OffsetRange(0, 20)


def test_a_client_that_begins_while_the_master_is_frozen_asks_the_other_member(
    tree: Tree, cluster: MemoryCluster, memory: TreeCache
) -> None:
    """The frozen one is still registered, and accepts connections."""
    tree.zookeeper.put("/pairs/2", PAIR % (4, "a"))
    tree.gone("/brokers/ids/2/slave0")
    frozen, other = cluster.brokers[1:]
    frozen.pair, other.pair, other.slave = PairFacts(SLAVE_2, True, 4), PairFacts(MASTER_2, True, 5), False
    frozen.shuffle = lambda replies: replies.clear()
    began_s = cluster.pool.clock.monotonic()
    directory = ZooKeeperDirectory(memory, cluster.pool)
    producer = Producer(directory, cluster.pool)
    producer.send("orders", b"x", partition=Partition(2, 0))
    assert directory.ends(["orders"])[TopicPartition("orders", Partition(2, 0))].end > 20
    assert cluster.pool.clock.monotonic() - began_s < 3


def test_a_session_of_a_pool_that_knows_nobody_hears_of_the_pair_when_its_broker_is_silent(
    tree: Tree, cluster: MemoryCluster, memory: TreeCache
) -> None:
    """As in a task, which was given an address, and has asked nobody yet."""
    tree.zookeeper.put("/pairs/2", PAIR % (4, "a"))
    frozen, other = cluster.brokers[1:]
    frozen.pair, other.pair, other.slave = PairFacts(SLAVE_2, True, 4), PairFacts(MASTER_2, True, 5), False
    frozen.shuffle = lambda replies: replies.clear()
    ZooKeeperDirectory(memory, cluster.pool)
    began_s = cluster.pool.clock.monotonic()
    with pytest.raises(ConnectionFailed, match="is its pair's master by now"), cluster.pool.lease(MASTER_2) as session:
        session.stats([""])
    with cluster.pool.lease(MASTER_2) as session:
        assert session.address == SLAVE_2
    assert cluster.pool.clock.monotonic() - began_s < 3


@pytest.mark.parametrize("text", ["", "hello", "[]", '{"epoch": 1}', PAIR % (4, "c"), '{"members": {"a": 1}}'])
def test_a_record_of_a_pair_that_makes_no_sense_is_passed_over(
    text: str, tree: Tree, directory: ZooKeeperDirectory
) -> None:
    tree.zookeeper.put("/pairs/2", text)
    assert directory.brokers() == {2: MASTER_2, 7: MASTER_7}
    assert len(directory.writable("orders")) == 3


def test_who_does_not_use_zookeeper_does_not_import_kazoo() -> None:
    code = "import sys, metaq.discovery.zookeeper, metaq_broker.app; sys.exit('kazoo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
