"""One group of Java and Python consumers over a real ZooKeeper, which join, leave and are killed while others send.

Every acknowledged message is consumed, partitions are divided as both clients compute it, and a message is consumed
twice only where a member was killed. Runs only where ``METAQ_JAVA_LIB`` names a folder with the client's jars;
``METAQ_GROUP_ROUNDS`` is how many times the members change (docs/testing.md).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fix_broker import wait_until
from fix_spark_java import named
from fix_zookeeper import SESSION_S, ZooKeeperRoot
from fix_zookeeper_brokers import Brokers

from metaq import MetaQ
from metaq.client.groups.assignment import STRATEGIES, wanted_partitions
from metaq.model import Partition

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOPIC, GROUP, PARTITIONS = "mixed", "both", 12
DEADLINE_S = 60.0
ROUNDS = int(os.environ.get("METAQ_GROUP_ROUNDS", "8"))


@dataclass
class Member:
    """A consumer in a process of its own, and the file that says what it consumed."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    killed: bool = False

    def rows(self) -> list[tuple[int, str, str]]:
        """(ms since 1970, partition, text) of each message; a last line may be cut by a kill."""
        if not self.log.exists():
            return []
        lines = self.log.read_text().split("\n")[:-1]
        return [(int(ms), partition, text) for ms, partition, text in (line.split("\t") for line in lines)]

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0, f"{self.name} did not leave well"

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait(DEADLINE_S)


@dataclass
class Group:
    """All members that ever were, and how more are started."""

    zookeeper: ZooKeeperRoot
    classes: str
    folder: Path
    strategy: str
    members: list[Member] = field(default_factory=list)

    @property
    def alive(self) -> list[Member]:
        return [one for one in self.members if one.process.poll() is None]

    def join(self, language: str) -> Member:
        name = f"{language}{len(self.members)}"
        log = self.folder / f"{name}.log"
        program = [sys.executable, str(Path(__file__).with_name("python_member.py"))]
        if language == "java":
            java = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", f"-Dmeta.recover.path={self.folder}"]
            program = [*java, "-cp", self.classes, "JavaMember"]
        kind = "DEFAULT" if self.strategy == "range" else "CONSIST"
        where = [self.zookeeper.server.hosts, self.zookeeper.root, TOPIC, GROUP]
        command = [*program, *where, name, str(int(SESSION_S * 1000)), kind, str(log)]
        with open(self.folder / f"{name}.err", "wb") as errors:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors)
        self.members.append(Member(name, process, log))
        return self.members[-1]

    def owners(self) -> dict[str, str]:
        nodes = self.zookeeper.dump(f"/consumers/{GROUP}/owners/{TOPIC}")[1:]
        return {node.path.rpartition("/")[2]: node.text for node in nodes}

    def expected(self) -> dict[str, str]:
        """Who owns what once all is quiet."""
        members = {f"{GROUP}_{one.name}": [TOPIC] for one in self.alive}
        partitions = [Partition(3, index) for index in range(PARTITIONS)]
        strategy = STRATEGIES[self.strategy]
        return {
            str(where.partition): member
            for member in members
            for where in wanted_partitions(strategy, member, members, {TOPIC: partitions})
        }

    def settle(self) -> None:
        """Wait until the partitions are divided as they should be."""
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

    def consumed(self) -> Counter[str]:
        return Counter(text for one in self.members for _, _, text in one.rows())


class Sender:
    """Sends numbered messages in a thread until it is stopped; notes those that were acknowledged."""

    def __init__(self, mq: MetaQ) -> None:
        self._producer, self.sent, self._stop = mq.producer(), list[str](), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            texts = [f"{len(self.sent) + number:08}" for number in range(10)]
            self._producer.send_many(TOPIC, texts)
            self.sent += texts

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the Java member."""
    jars, folder = named("METAQ_JAVA_LIB"), tmp_path_factory.mktemp("classes")
    source = Path(__file__).with_name("JavaMember.java")
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(folder), str(source)], check=True, timeout=180)
    return f"{jars}/*:{folder}"


@pytest.fixture(params=["range", "consistent"])
def group(request: pytest.FixtureRequest, classes: str, zookeeper: ZooKeeperRoot, tmp_path: Path) -> Iterator[Group]:
    made = Group(zookeeper, classes, tmp_path, request.param)
    yield made
    for one in made.alive:
        one.kill()
    for one in made.members:
        if one.process.stdin is not None and not one.process.stdin.closed:
            one.process.stdin.close()


def test_java_and_python_consumers_share_a_group(group: Group, brokers: Brokers, zookeeper: ZooKeeperRoot) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    brokers.start("one", f"[topic={TOPIC}]\nnumPartitions={PARTITIONS}\n")
    with MetaQ(f"zk://{zookeeper.option}") as mq:
        sender = Sender(mq)
        try:
            for language in ("java", "python"):
                group.join(language)
            group.settle()
            for _ in range(ROUNDS):
                _change(group, choose)
                group.settle()
        finally:
            sender.stop()
        wait_until(lambda: len(group.consumed()) == len(sender.sent), "all is consumed", DEADLINE_S)
    for one in group.alive:
        one.leave()
    consumed = group.consumed()
    assert set(consumed) == set(sender.sent)
    _check_repeats(group, consumed)
    _check_offsets(group, sender, zookeeper)


def _change(group: Group, choose: random.Random) -> None:
    """Let a member join, leave or die; there are two to five of them."""
    alive = group.alive
    action = choose.choice(["join", "leave", "kill"])
    if len(alive) <= 2 or (action == "join" and len(alive) < 5):
        group.join(choose.choice(["java", "python"]))
    elif action == "kill":
        choose.choice(alive).kill()
    else:
        choose.choice(alive).leave()


def _check_repeats(group: Group, consumed: Counter[str]) -> None:
    """A message was consumed again only if a member that was killed consumed it before."""
    killed = {text for one in group.members if one.killed for _, _, text in one.rows()}
    repeated = [text for text, count in consumed.items() if count > 1]
    without_reason = [text for text in repeated if text not in killed]
    who = {text: [one.name for one in group.members for row in one.rows() if row[2] == text] for text in without_reason}
    assert not without_reason, f"{len(repeated)} repeated, of these without a kill: {dict(list(who.items())[:20])}"


def _check_offsets(group: Group, sender: Sender, zookeeper: ZooKeeperRoot) -> None:
    """The group has nothing left to read, whoever saved its offsets."""
    with MetaQ(f"zk://{zookeeper.option}") as mq:
        assert {one.bytes_behind for one in mq.cluster.lag(GROUP)} == {0}
