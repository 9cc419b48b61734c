"""Fixtures that run a real ZooKeeper, from the jars that PySpark brings along, and brokers that register there.

One server a session, a root a test. The server listens on this machine only. Its tick is short, so sessions may be as
short as ``SESSION_S``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, broker_command, wait_until, write_ini
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import peers.zookeeper
from metaq import MetaQ
from metaq.model import Address

_numbers = itertools.count()

TICK_MS = 200
SESSION_S = 2.0
"""Longer than the two ticks that ZooKeeper insists on, so that a busy machine does not end sessions by itself."""

ROOTS_AHEAD = 20
"""Roots are made so many tests ahead: in a tree that is a few seconds old, groups wait for members that know more."""


class ZooKeeperServer(peers.zookeeper.ZooKeeperServer):
    """A server that tests freeze, take back to an older state, and look into."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TICK_MS)
        self._roots: deque[str] = deque()

    @property
    def data(self) -> Path:
        """The folder of what it has stored."""
        return self.folder / "data"

    def freeze(self) -> None:
        """Stop its process: it answers nobody, and does not notice that time passes."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Have a frozen process run on."""
        os.kill(self.pid, signal.SIGCONT)

    def keep(self, folder: Path) -> None:
        """Copy what it has stored to ``folder``; it must not run."""
        assert not self.running
        shutil.copytree(self.data, folder)

    def take_back(self, folder: Path) -> None:
        """Go back to what ``keep`` has copied; it must not run."""
        self.empty()
        shutil.copytree(folder, self.data, dirs_exist_ok=True)

    def restore(self) -> None:
        """Have it run as at the beginning, whatever a test did."""
        if not self.running:
            self.start()
        self.thaw()

    def client(self) -> KazooClient:
        """Return a connected client, for looking and for playing a Java client's part. The caller stops it."""
        client = KazooClient(self.address, timeout=10 * SESSION_S)
        client.start(DEADLINE_S)
        return client

    def next_root(self, client: KazooClient) -> str:
        """Return a root for one test, which is there."""
        while len(self._roots) <= ROOTS_AHEAD:
            self._roots.append(f"/test-{next(_numbers)}")
            client.retry(client.ensure_path, self._roots[-1])
        root = self._roots.popleft()
        client.retry(client.ensure_path, root)  # another test may have emptied the server
        return root


@dataclass(frozen=True)
class Node:
    """One node as a dump shows it."""

    path: str
    ephemeral: bool
    text: str


@dataclass(frozen=True)
class ZooKeeperRoot:
    """A part of the server that only one test uses.

    Its client's own session may have expired when a test looks after a freeze: looking tries again in a new one.
    """

    server: ZooKeeperServer
    root: str
    client: KazooClient

    @property
    def option(self) -> str:
        """What the connector's option ``zookeeper`` says for it."""
        return f"{self.server.address}{self.root}"

    def ini(self, **keys: object) -> str:
        """The section of a server.ini, with short times."""
        given = {
            "zkConnect": self.server.address,
            "zkRoot": self.root,
            "zkSessionTimeoutMs": int(SESSION_S * 1000),
            "zkConnectionTimeoutMs": int(DEADLINE_S * 1000),
            "zkSyncTimeMs": 0,
        } | keys
        return "[zookeeper]\n" + "".join(f"zk.{name}={value}\n" for name, value in given.items())

    def text(self, path: str) -> str | None:
        """The text of a node below the root; ``None`` if there is no such node."""
        try:
            return (self.client.retry(self.client.get, self.root + path)[0] or b"").decode()
        except NoNodeError:
            return None

    def put(self, path: str, text: str = "", *, ephemeral: bool = False) -> None:
        """Make or change a node below the root, with its parents."""
        if self.client.retry(self.client.exists, self.root + path) is None:
            self.client.create(self.root + path, text.encode(), ephemeral=ephemeral, makepath=True)
        else:
            self.client.retry(self.client.set, self.root + path, text.encode())

    def remove(self, path: str) -> None:
        """Remove a node and everything below it in one step: nobody sees a part of it."""
        wait_until(lambda: self._is_removed(self.root + path), f"{path} is removed")

    def _is_removed(self, path: str) -> bool:
        """Try to remove it; it fails if a node below it comes or goes meanwhile."""
        found = [path]
        try:
            for parent in found:
                found += [f"{parent}/{name}" for name in self.client.retry(self.client.get_children, parent)]
        except NoNodeError:
            return self.client.retry(self.client.exists, path) is None
        request = self.client.transaction()
        for node in reversed(found):
            request.delete(node)
        return self.client.retry(request.commit) == [True] * len(found)

    def end_session_at(self, path: str) -> None:
        """Remove every node of the session that made ``path``, as the end of that session would."""
        owner = self._owner(path)
        assert owner != 0, f"{path} belongs to no session"
        request = self.client.transaction()
        for node in self.dump():
            if node.ephemeral and self._owner(node.path) == owner:
                request.delete(self.root + node.path)
        assert all(done is True for done in request.commit())

    def _owner(self, path: str) -> int:
        return int(self.client.retry(self.client.get, self.root + path)[1].ephemeralOwner)

    def dump(self, path: str = "") -> list[Node]:
        """All nodes at and below ``path``, in the order of a depth-first walk by name."""
        full = self.root + path
        data, stat = self.client.retry(self.client.get, full)
        found = [Node(path, stat.ephemeralOwner != 0, (data or b"").decode())]
        for child in sorted(self.client.retry(self.client.get_children, full)):
            found += self.dump(f"{path}/{child}")
        return found


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One ZooKeeper for all tests. Use ``zookeeper`` instead."""
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.thaw()
    server.kill()


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeperServer) -> Iterator[ZooKeeperRoot]:
    """A root in ZooKeeper for this test alone."""
    client = zookeeper_server.client()
    yield ZooKeeperRoot(zookeeper_server, zookeeper_server.next_root(client), client)
    zookeeper_server.restore()
    client.stop()
    client.close()


class Brokers:
    """Starts brokers that register in one ZooKeeper. Each has a folder named after it, with its server.ini."""

    def __init__(self, zookeeper: ZooKeeperRoot, folder: Path, start_broker: StartBroker) -> None:
        self.zookeeper, self._folder, self._start = zookeeper, folder, start_broker

    def write(
        self, name: str, topics: str = "[topic=test]\n", broker_id: int = 3, port: int = 0, **zookeeper: object
    ) -> Path:
        rest = self.zookeeper.ini(**zookeeper) + topics
        return write_ini(self._folder / name, rest, brokerId=broker_id, numPartitions=2, serverPort=port)

    def start(
        self, name: str, topics: str = "[topic=test]\n", broker_id: int = 3, port: int = 0, **zookeeper: object
    ) -> RunningBroker:
        return self._start("start", "-f", self.write(name, topics, broker_id, port, **zookeeper))

    @contextmanager
    def one_with_messages(self, partitions: int, messages: int) -> Iterator[MetaQ]:
        """A client of a cluster with one broker, whose topic ``test`` has so many messages."""
        self.start("one", f"[topic=test]\nnumPartitions={partitions}\n")
        with MetaQ(f"zk://{self.zookeeper.option}") as made:
            made.producer().send_many("test", [b"%d" % number for number in range(messages)])
            yield made

    def master(self, broker_id: int = 3) -> str | None:
        return self.zookeeper.text(f"/brokers/ids/{broker_id}/master")


def waits_until_stopped(ini: Path, words: str) -> None:
    """Start a broker that does not get ready, wait until it says ``words``, and stop it, which ends it well."""
    process = subprocess.Popen(broker_command("start", "-f", ini), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(words in line for line in process.stderr)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


def meta(address: Address) -> str:
    return f"meta://{address}"


@pytest.fixture
def brokers(zookeeper: ZooKeeperRoot, tmp_path: Path, start_broker: StartBroker) -> Brokers:
    return Brokers(zookeeper, tmp_path, start_broker)
