"""Histories of a cluster under load: brokers, ZooKeeper and the way between them fail, nothing acknowledged does."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cluster_load import TOPIC, Cable, Position, Producers, Receipt, holes, lost, repeated, stored
from fix_broker import RunningBroker, StartBroker, broker_command, run_broker_command, wait_until
from fix_zookeeper import SESSION_S, Brokers, Node, meta
from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError

from metaq.formats.checksum import crc32
from metaq.model import Partition
from metaq.testing.ports import free_port

pytestmark = [pytest.mark.process, pytest.mark.slow]

IDS = (1, 2, 3)
TOPICS = f"[topic={TOPIC}]\n"


class Cluster:
    """Three brokers under load."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers, self.zookeeper = brokers, brokers.zookeeper
        self.cable = Cable(self.zookeeper.server.port)
        self.running: dict[int, RunningBroker] = {}
        for broker_id in IDS:
            self.start(broker_id)
        self.load = Producers(self.zookeeper.option)

    def start(self, broker_id: int) -> None:
        """Start a broker, also again; that of id 3 has its own cable to ZooKeeper."""
        way = {"zkConnect": self.cable.address} if broker_id == 3 else {}
        self.running[broker_id] = self.brokers.start(f"b{broker_id}", TOPICS, broker_id, **way)

    def ini(self, broker_id: int) -> Path:
        return self.running[broker_id].data.parent / "server.ini"

    def until_registered(self) -> None:
        """Return when the tree is that of the running brokers, node by node."""
        wait_until(lambda: self.tree() == self.right_tree(), "the tree to be right")

    def tree(self) -> list[Node]:
        """What is there of brokers; nothing while the observer has lost its own session."""
        try:
            nodes = [each for part in ("/brokers", "/members") for each in self.zookeeper.dump(part) if each.text]
        except (ConnectionLoss, SessionExpiredError, NoNodeError):
            return []
        return sorted(nodes, key=lambda node: node.path)

    def right_tree(self) -> list[Node]:
        """What should be there: all that says something."""
        return sorted(
            (node for broker_id in self.running for node in self._right_nodes(broker_id)), key=lambda node: node.path
        )

    def _right_nodes(self, broker_id: int) -> Iterator[Node]:
        address, mine = meta(self.running[broker_id].address), f"/brokers/ids/{broker_id}"
        yield from (Node(path, False, address) for path in (mine, f"/members/{broker_id}"))
        yield Node(f"/members/{broker_id}/topics", False, f'["{TOPIC}"]')
        yield Node(f"{mine}/master", True, address)
        yield Node(f"{mine}/master_config_checksum", True, str(crc32(self.ini(broker_id).read_bytes())))
        for tree in ("pub", "sub"):
            text = f'{{"numParts":2,"broker":"{broker_id}-m"}}'
            yield Node(f"/brokers/topics-{tree}/{TOPIC}/{broker_id}-m", True, text)
        yield Node(f"/brokers/topics/{TOPIC}/{broker_id}-m", True, "2")

    def judge(self) -> None:
        """End the load; nothing acknowledged is lost, nothing is there twice, and the tree is right."""
        self.load.end()
        self.until_registered()
        found = stored(self.zookeeper.option)
        assert lost(self.load.receipts, found) == []
        assert repeated(found) == []
        everywhere = {Partition(broker_id, index) for broker_id in IDS for index in (0, 1)}
        assert {receipt.partition for receipt in self.load.receipts} == everywhere

    def end(self) -> None:
        self.load.end()
        self.cable.close()


@pytest.fixture
def cluster(brokers: Brokers) -> Iterator[Cluster]:
    cluster = Cluster(brokers)
    yield cluster
    cluster.end()


@pytest.mark.long
def test_brokers_are_killed_and_started_in_any_order(cluster: Cluster) -> None:
    chance = random.Random(5)
    cluster.load.go_on(*IDS)
    cluster.running[1].kill()
    cluster.load.go_on(2, 3)
    cluster.start(1)
    cluster.load.go_on(*IDS)
    for _ in range(3):
        for broker_id in (down := chance.sample(IDS, chance.randrange(1, 4))):
            if chance.random() < 0.5:
                cluster.running[broker_id].kill()
            else:
                assert cluster.running[broker_id].stop() == 0
        for broker_id in chance.sample(down, len(down)):
            cluster.start(broker_id)
        cluster.load.go_on(*IDS)
    cluster.judge()


def misses_zookeeper(broker: RunningBroker) -> bool:
    """Whether the last thing that a broker said of ZooKeeper is that it is away."""
    log = broker.log_text()
    return log.rfind("ZooKeeper is away") > log.rfind("registered in ZooKeeper")


@pytest.mark.long
def test_zookeeper_freezes_dies_and_comes_back(cluster: Cluster) -> None:
    server = cluster.zookeeper.server
    cluster.load.go_on(*IDS)
    server.freeze()
    until_s = time.monotonic() + 2 * SESSION_S
    wait_until(lambda: time.monotonic() > until_s, "all sessions are over by the brokers' reckoning")
    cluster.load.go_on(*IDS)
    server.thaw()
    cluster.until_registered()
    wait_until(lambda: not any(map(misses_zookeeper, cluster.running.values())), "the brokers know it")
    # Who looked before the brokers were back knows no masters, and would learn of none while ZooKeeper is dead.
    cluster.load.go_on(*IDS)
    server.kill()
    wait_until(lambda: all(map(misses_zookeeper, cluster.running.values())), "the brokers have noticed")
    cluster.load.go_on(*IDS)
    cluster.running[2].kill()  # its session cannot expire before ZooKeeper is back
    cluster.load.go_on(1, 3)
    server.start()
    cluster.start(2)
    cluster.load.go_on(*IDS)
    cluster.judge()


@pytest.mark.long
def test_a_broker_is_cut_off_from_zookeeper_and_another_wants_an_id(cluster: Cluster) -> None:
    cluster.load.go_on(*IDS)
    rival = subprocess.Popen(
        broker_command("start", "-f", cluster.brokers.write("rival", TOPICS, 2)), stderr=subprocess.PIPE, text=True
    )
    for _ in range(2):
        cluster.cable.cut()
        wait_until(lambda: cluster.brokers.master(3) is None, "the broker without its cable is given up")
        cluster.load.go_on(1, 2)
        cluster.cable.mend()
        cluster.until_registered()
        cluster.load.go_on(*IDS)
    _, said = rival.communicate(timeout=60)
    assert rival.returncode == 1
    assert "broker id 2 is taken" in said
    cluster.cable.cut()
    cluster.running[3].kill()
    cluster.cable.mend()
    cluster.start(3)
    cluster.load.go_on(*IDS)
    cluster.judge()


class Replicated:
    """Broker 3 and its copy, under load."""

    def __init__(self, brokers: Brokers, start_broker: StartBroker, sections: Mapping[str, str]) -> None:
        """Start the brokers in the order of ``sections``, whose texts have ``{master}`` and ``{slave}`` for ports."""
        self.brokers = brokers
        ports = {name: free_port() for name in sections}
        inis = {
            name: brokers.write(name, section.format(**ports) + TOPICS, port=ports[name])
            for name, section in sections.items()
        }
        self.running = {name: start_broker("start", "-f", ini) for name, ini in inis.items()}
        self.load = Producers(brokers.zookeeper.option)

    def until_copied(self) -> None:
        """Return when the slave has something."""
        data = self.running["slave"].data
        wait_until(lambda: any(file.stat().st_size for file in data.glob("*/*.meta")), "the first copied bytes")

    def lose_the_master(self) -> None:
        """Kill the master for good and promote the slave."""
        self.running["master"].kill()
        self.promote()

    def promote(self, *how: str) -> None:
        """Make the slave a master."""
        done = run_broker_command("ctl", "--data", self.running["slave"].data, "promote", *how)
        assert done.returncode == 0, done.stderr

    def receipts_of(self, name: str) -> list[Receipt]:
        return [each for each in self.load.receipts if each.by == self.running[name].address]

    def judge(self) -> dict[Position, bytes]:
        """End the load; return what is stored, where nothing is twice; the promoted broker is in the master's place."""
        self.load.end()
        assert self.brokers.master() == meta(self.running["slave"].address)
        found = stored(self.brokers.zookeeper.option)
        assert repeated(found) == []
        return found


def test_a_pair_whose_master_is_lost_for_good_loses_nothing(brokers: Brokers, start_broker: StartBroker) -> None:
    slave = "[gregor]\nmaster=127.0.0.1:{master}\n"
    master = "[samsa]\nslave=127.0.0.1:{slave}\ncheckSlaveIntervalInMills=20\n"
    pair = Replicated(brokers, start_broker, {"slave": slave, "master": master})
    pair.load.go_on(3, count=100)
    pair.lose_the_master()
    pair.load.go_on(3, deadline_s=60)
    found = pair.judge()
    assert lost(pair.load.receipts, found) == []


def test_a_master_that_is_fenced_leaves_its_place_in_zookeeper(brokers: Brokers, start_broker: StartBroker) -> None:
    slave = "[gregor]\nmaster=127.0.0.1:{master}\n"
    master = "[samsa]\nslave=127.0.0.1:{slave}\ncheckSlaveIntervalInMills=20\n"
    pair = Replicated(brokers, start_broker, {"slave": slave, "master": master})
    pair.load.go_on(3, count=20)
    pair.promote("--force")  # although the master lives
    place = meta(pair.running["slave"].address)
    wait_until(lambda: brokers.master() == place, "the promoted one takes its place", 60)
    pair.load.go_on(3, deadline_s=60)
    assert lost(pair.load.receipts, pair.judge()) == []
    for broker in pair.running.values():
        assert broker.stop() == 0


def test_an_asynchronous_slave_lacks_at_most_what_came_last(brokers: Brokers, start_broker: StartBroker) -> None:
    slave = "[slave]\nslaveId=1\nmaster=127.0.0.1:{master}\n"
    copied = Replicated(brokers, start_broker, {"master": "", "slave": slave})
    copied.until_copied()
    copied.load.go_on(3, count=100)
    copied.lose_the_master()
    copied.load.go_on(3)
    found = copied.judge()
    masters = copied.receipts_of("master")
    assert holes(masters, found) == []
    assert len(lost(masters, found)) < len(masters), "the slave had copied something"
    assert lost(copied.receipts_of("slave"), found) == []
