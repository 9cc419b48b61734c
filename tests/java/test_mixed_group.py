"""One group of Java and Python consumers over a real ZooKeeper, which join, leave and are killed while others send.

Every acknowledged message is consumed, partitions are divided as both clients compute it, and a message is consumed
twice only where a member was killed. Runs only where ``METAQ_JAVA_LIB`` names a folder with the client's jars;
``METAQ_GROUP_ROUNDS`` is how many times the members change (docs/testing.md).
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fix_broker import wait_until
from fix_spark import named
from fix_zookeeper import SESSION_S, Brokers, ZooKeeperRoot
from mixed_group import DEADLINE_S, GROUP, PARTITIONS, PYTHON_MEMBER, TOPIC, MixedGroup

from metaq import MetaQ
from metaq.client.groups.ownership.assignment import STRATEGIES, wanted_partitions
from metaq.model import Partition

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROUNDS = int(os.environ.get("METAQ_GROUP_ROUNDS", "8"))


@dataclass
class _Settings:
    zookeeper: ZooKeeperRoot
    classes: str
    strategy: str


class Group(MixedGroup):
    """Members that find each other in ZooKeeper."""

    def __init__(self, folder: Path, settings: _Settings) -> None:
        super().__init__(folder)
        self.zookeeper, self._settings = settings.zookeeper, settings

    def command(self, language: str, name: str) -> list[str]:
        program = PYTHON_MEMBER
        if language == "java":
            java = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", f"-Dmeta.recover.path={self.folder}"]
            program = [*java, "-cp", self._settings.classes, "JavaMember"]
        kind = "DEFAULT" if self._settings.strategy == "range" else "CONSIST"
        where = [self.zookeeper.server.address, self.zookeeper.root, TOPIC, GROUP]
        return [*program, *where, name, str(int(SESSION_S * 1000)), kind, str(self.log_of(name))]

    def owners(self) -> dict[str, str]:
        nodes = self.zookeeper.dump(f"/consumers/{GROUP}/owners/{TOPIC}")[1:]
        return {node.path.rpartition("/")[2]: node.text for node in nodes}

    def expected(self) -> dict[str, str]:
        """Who owns what once all is quiet."""
        members = {f"{GROUP}_{one.name}": [TOPIC] for one in self.alive}
        partitions = [Partition(3, index) for index in range(PARTITIONS)]
        strategy = STRATEGIES[self._settings.strategy]
        return {
            str(where.partition): member
            for member in members
            for where in wanted_partitions(strategy, member, members, {TOPIC: partitions})
        }

    def settle(self) -> None:
        state = self.zookeeper.client.retry
        path = f"{self.zookeeper.root}/consumers/{GROUP}/owners/{TOPIC}"
        wait_until(lambda: state(self.zookeeper.client.exists, path) is not None, "somebody is there", DEADLINE_S)
        try:
            wait_until(self._is_settled, "the partitions are divided", DEADLINE_S)
        except AssertionError:
            pytest.fail(f"owners {self.owners()}, expected {self.expected()}; {self.folder}")

    def _is_settled(self) -> bool:
        try:
            return self.owners() == self.expected()
        except Exception:  # a node went while it was looked at
            return False


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the Java member."""
    jars, folder = named("METAQ_JAVA_LIB"), tmp_path_factory.mktemp("classes")
    source = Path(__file__).with_name("JavaMember.java")
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(folder), str(source)], check=True, timeout=180)
    return f"{jars}/*:{folder}"


@pytest.fixture(params=["range", "consistent"])
def group(request: pytest.FixtureRequest, classes: str, zookeeper: ZooKeeperRoot, tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path, _Settings(zookeeper, classes, request.param))
    yield made
    made.end()


def test_java_and_python_consumers_share_a_group(group: Group, brokers: Brokers, zookeeper: ZooKeeperRoot) -> None:
    brokers.start("one", f"[topic={TOPIC}]\nnumPartitions={PARTITIONS}\n")
    with MetaQ(f"zk://{zookeeper.option}") as mq:
        group.change_while_sending(mq, random.randrange(1 << 32), ROUNDS)
        assert {one.bytes_behind for one in mq.cluster.lag(GROUP)} == {0}, "whoever saved the offsets"
    without_a_kill = {
        text: [one.name for _, one in rows]
        for text, rows in group.repeated().items()
        if not any(one.killed for _, one in rows)
    }
    assert not without_a_kill, f"{len(group.repeated())} repeated, of these without a kill: {without_a_kill}"
