"""Fixtures that run a real ZooKeeper, from the jars that PySpark brings along, and brokers that register there.

One server a session, a root a test. The server listens on this machine only. Its tick is short, so sessions may be as
short as ``SESSION_S``.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, broker_command, free_port, wait_until, write_ini
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from metaq import MetaQ
from metaq.model import Address
from peers.zookeeper import zookeeper_arguments

TICK_MS = 200
SESSION_S = 2.0
"""Longer than the two ticks that ZooKeeper insists on, so that a busy machine does not end sessions by itself."""

_ATTEMPTS = 3
_ANSWER_S = 1.0
"""A server that is asked while it starts may never answer."""


class ZooKeeperServer:
    """A ZooKeeper process with its data in ``folder``. The port stays the same when it is started again."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        self._folder = folder
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start_anywhere(self) -> None:
        """Start it on a free port; another program may take the port first, then on another one."""
        for _ in range(_ATTEMPTS):
            self.port = free_port()
            self.start(must=False)
            if self._is_ours():
                return
            self.kill()
        pytest.fail(f"no ZooKeeper after {_ATTEMPTS} attempts: {(self._folder / 'zookeeper.log').read_text()}")

    def start(self, *, must: bool = True) -> None:
        """Start it with whatever it has stored, and wait until it serves."""
        java = ["java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        server = zookeeper_arguments(self._folder, self.port, TICK_MS)
        with open(self._folder / "zookeeper.log", "ab") as log:
            self._process = process = subprocess.Popen([*java, *server], stdout=log, stderr=log)
        wait_until(lambda: self._is_ours() or process.poll() is not None, "ZooKeeper serves or ends")
        assert self._is_ours() or not must, (self._folder / "zookeeper.log").read_text()

    def _is_ours(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), _ANSWER_S) as connection:
                connection.sendall(b"conf")
                told = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except OSError:
            return False
        return f"dataDir={self.data}".encode() in told

    def freeze(self) -> None:
        """Stop it in its tracks: it answers nobody, and does not notice that time passes."""
        self._running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._running.kill()
        self._running.wait(DEADLINE_S)

    def empty(self) -> None:
        """Take everything away that it has stored; it must not run."""
        assert self._running.poll() is not None, "it runs"
        shutil.rmtree(self.data)
        self.data.mkdir()

    def keep(self, folder: Path) -> None:
        """Copy what it has stored to ``folder``; it must not run."""
        assert self._running.poll() is not None, "it runs"
        shutil.copytree(self.data, folder)

    def take_back(self, folder: Path) -> None:
        """Go back to what ``keep`` has copied; it must not run."""
        self.empty()
        shutil.copytree(folder, self.data, dirs_exist_ok=True)

    def restore(self) -> None:
        """Have it run as at the beginning, whatever a test did."""
        if self._running.poll() is not None:
            self.start()
        self.thaw()

    def client(self) -> KazooClient:
        """A connected client, for looking and for playing a Java client's part. The caller stops it."""
        client = KazooClient(self.hosts, timeout=SESSION_S)
        client.start(DEADLINE_S)
        return client

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was never started"
        return self._process


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
        return f"{self.server.hosts}{self.root}"

    def ini(self, **keys: object) -> str:
        """The section of a server.ini, with short times."""
        given = {
            "zkConnect": self.server.hosts,
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
    server.start_anywhere()
    yield server
    server.thaw()
    server.kill()


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[ZooKeeperRoot]:
    """A root in ZooKeeper for this test alone."""
    root = "/" + re.sub(r"\W+", "-", request.node.name).strip("-")[:60]
    client = zookeeper_server.client()
    client.ensure_path(root)
    yield ZooKeeperRoot(zookeeper_server, root, client)
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
    process.communicate(timeout=20)
    assert process.returncode == 0


def meta(address: Address) -> str:
    return f"meta://{address}"


@pytest.fixture
def brokers(zookeeper: ZooKeeperRoot, tmp_path: Path, start_broker: StartBroker) -> Brokers:
    return Brokers(zookeeper, tmp_path, start_broker)
