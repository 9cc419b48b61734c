"""The environment of the benchmarks: broker processes, a ZooKeeper from PySpark's jars, a Spark session."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kazoo.client import KazooClient
from machine import pages_given_back
from pyspark.sql import SparkSession

from metaq.model import Address
from metaq.testing.ports import free_port
from peers.zookeeper import zookeeper_arguments

DEADLINE_S = 60.0


@dataclass(frozen=True)
class RunningBroker:
    """A broker's address, its process, and how long it took to become ready."""

    address: Address
    pid: int
    ready_s: float


@contextmanager
def running_broker(
    folder: Path, partitions: int, broker_id: int = 0, unflush_threshold: int = 0
) -> Iterator[RunningBroker]:
    """Serve the data in ``folder``; every topic is accepted, with ``partitions`` partitions. Stopped cleanly at the
    end.

    With ``unflush_threshold`` > 0 it acknowledges before fsync.
    """
    folder.mkdir(exist_ok=True)
    settings = folder / "server.ini"
    settings.write_text(
        f"[system]\nbrokerId={broker_id}\nnumPartitions={partitions}\nserverPort=0\nhostName=127.0.0.1\n"
        f"unflushThreshold={unflush_threshold}\nunflushInterval=10000\n"
        f"maxSegmentSize=1024*1024*1024\nmaxTransferSize=1024*1024\n"
        f"dataPath={folder / 'data'}\ndiskFreeMinBytes=0\n[topic=*]\n"
    )
    with started("start", "-f", str(settings), "--log-level", "error") as running:
        yield running


@contextmanager
def started(*arguments: str, program: Sequence[str] = ("-m", "metaq_broker.cli")) -> Iterator[RunningBroker]:
    """Run ``metaq-broker`` with these arguments until the end of the block; it is ready when the block begins.

    ``program``: the interpreter's arguments that start it.
    """
    command = [sys.executable, *program, *arguments]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = re.search(r" ready on (\S+),", process.stdout.readline())
            if ready is None:
                raise SystemExit("the broker did not get ready")
            yield RunningBroker(Address.parse(ready[1]), process.pid, time.perf_counter() - start)
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


TICK_MS = 200
SESSION_S = 2.0


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
    command = ["java", "-Xmx256m", *zookeeper_arguments(folder, port, TICK_MS)]
    with open(folder / "log", "w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until(lambda: _listens(port), "ZooKeeper to serve")
            with bare_client(f"127.0.0.1:{port}"):
                pass  # the first session takes seconds on a busy machine, and should not be measured
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def bare_client(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts, timeout=SESSION_S)
    client.start(DEADLINE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


class BrokerProcess:
    """A broker that registers at ``hosts`` and has its files in ``folder``; ``start`` and ``kill`` it at any time."""

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
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@contextmanager
def running_brokers(*brokers: BrokerProcess) -> Iterator[None]:
    """Run brokers, started in this order."""
    try:
        for broker in brokers:
            broker.start()
        yield
    finally:
        for broker in brokers:
            broker.kill()


ROOT = Path(__file__).parents[1]
PARTITIONS = 2
TOPIC = "bench"


class Case(NamedTuple):
    payload_bytes: int
    rows: int


@contextmanager
def broker(partitions: int = PARTITIONS, *, for_writes: bool = False) -> Iterator[str]:
    """Run a broker on a free port, with ``partitions`` partitions of each topic; yield its address.

    ``for_writes``: data written to partitions are dropped from the page cache; see ``machine.pages_given_back``. The
    journal's are kept: the broker reads them again soon, so no system would drop these first.
    """
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
        options = ("--port", "0", "--partitions", str(partitions), "--log-level", "error")
        with started("dev", folder, *options) as running, _pages(folder, for_writes):
            yield str(running.address)


def _pages(folder: str, given_back: bool) -> AbstractContextManager[None]:
    return pages_given_back(Path(folder), f"**/{TOPIC}-*/*") if given_back else nullcontext()


def importable_by_workers() -> None:
    """Let the Python workers of a later session import the modules of this folder, and their daemons
    ``spark_python/sitecustomize.py``.
    """
    here, before = Path(__file__).parent, os.environ.get("PYTHONPATH", "")
    if str(here) not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(here), before, str(here / "spark_python"))))


@contextmanager
def spark(unix_socket: bool = True, slots: int = PARTITIONS) -> Iterator[SparkSession]:
    """Yield a session with ``slots`` task slots, whose workers use this interpreter.

    With ``unix_socket``, micro-batches are a few milliseconds faster, and throughput is the same.
    """
    importable_by_workers()
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "spark-conf")}
    session = (
        SparkSession.builder.master(f"local[{slots}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.python.unix.domain.socket.enabled", str(unix_socket).lower())
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    # Errors reach the program as exceptions; other log lines, mainly about queries that were stopped in the middle of a
    # batch, would hide the table.
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
