"""What the cluster is measured on: a ZooKeeper from PySpark's jars, and broker processes that register there."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from kazoo.client import KazooClient

from metaq.model import Address

TICK_MS = 200
SESSION_S = 2.0
DEADLINE_S = 60.0
_JARS = ("zookeeper", "slf4j-api", "metrics-core", "snappy-java", "netty")


def until(condition: Callable[[], bool], what: str, pause_s: float = 0.005) -> None:
    """Return as soon as ``condition`` holds; end the program when it does not within ``DEADLINE_S``."""
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            sys.exit(f"waited {DEADLINE_S:g} s in vain: {what}")
        select.select([], [], [], pause_s)


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[str]:
    """Run a ZooKeeper with its files in ``folder``; yield its ``host:port``."""
    folder.mkdir()
    port = free_port()
    config = folder / "zoo.cfg"
    config.write_text(
        f"tickTime={TICK_MS}\ndataDir={folder / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "maxClientCnxns=0\nadmin.enableServer=false\n"
    )
    jars = Path(pyspark.__path__[0]) / "jars"
    path = ":".join(str(jar) for name in _JARS for jar in jars.glob(f"{name}-*.jar"))
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    with (
        open(folder / "log", "w") as log,
        subprocess.Popen(["java", "-Xmx256m", "-cp", path, main, str(config)], stdout=log, stderr=log) as process,
    ):
        try:
            until(lambda: _listens(port), "ZooKeeper to serve")
            with bare_client(f"127.0.0.1:{port}"):
                pass  # the first session takes seconds on a busy machine, and is not what is measured
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def bare_client(hosts: str) -> Iterator[KazooClient]:
    """A session of kazoo and nothing else."""
    client = KazooClient(hosts, timeout=SESSION_S)
    client.start(DEADLINE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


class BrokerProcess:
    """A broker that registers at ``hosts`` and has its files in ``folder``; ``start`` and ``kill`` it at will."""

    def __init__(self, folder: Path, hosts: str, broker_id: int, sections: str) -> None:
        folder.mkdir()
        self.port = free_port()
        self._ini = folder / "server.ini"
        self._ini.write_text(
            f"[system]\nbrokerId={broker_id}\nnumPartitions=4\nserverPort={self.port}\nunflushThreshold=0\n"
            f"unflushInterval=10000\nmaxSegmentSize=1024*1024\nmaxTransferSize=1024*1024\ndataPath={folder / 'data'}\n"
            f"[zookeeper]\nzk.zkConnect={hosts}\nzk.zkSessionTimeoutMs={int(SESSION_S * 1000)}\nzk.zkSyncTimeMs=0\n"
            f"{sections}"
        )
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    def start(self) -> None:
        """Return when it is ready and registered."""
        command = [sys.executable, "-m", "metaq_broker.cli", "start", "-f", str(self._ini), "--log-level", "error"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if " ready on " not in (line := self._process.stdout.readline()):
            sys.exit(f"the broker did not get ready: {line!r}")

    def kill(self) -> None:
        """End it without warning, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@contextmanager
def running_brokers(*brokers: BrokerProcess) -> Iterator[None]:
    """Run brokers, in this order."""
    try:
        for broker in brokers:
            broker.start()
        yield
    finally:
        for broker in brokers:
            broker.kill()
