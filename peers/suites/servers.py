"""How each suite runs on each side: the servers that it needs, and the classes that replace others."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from peers.jvm import SMALL, JavaServer, ends_with_us, fresh
from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.jars import release
from peers.rocketmq.servers import Cluster
from peers.suites import exporter
from peers.suites.admin_commands import COMMANDS
from peers.suites.admin_sweep import compare
from peers.suites.folder import CompiledSuite
from peers.suites.junit import TestRun
from peers.suites.metaq_types import run_types
from peers.suites.results import Results, merged
from peers.zookeeper import zookeeper_arguments

ORIGINAL, OURS = "the real one", "ours"
OUR_MASTER, OUR_SLAVE = "our master, Java slave", "Java master, our slave"
REAL_ROCKETMQ: Final = "4.9.7"
JAVA: Final = Path(__file__).with_name("java")
COMPILE_DEADLINE_S: Final = 120
ALL_DEADLINE_S, CLASS_DEADLINE_S = 3600.0, 900.0
AT_A_TIME: Final = 6
"""Tests of the end-to-end suite mostly wait; its own build runs them concurrently, too."""
CLASSES_AT_A_TIME: Final = 3
"""Tests of RocketMQ's module ``test`` mostly wait, too, and each has its own servers."""

ZOOKEEPER_PORT, ZOOKEEPER_TICK_MS = 2181, 500
PAIRS: Final = {ORIGINAL: "", OURS: "all", OUR_MASTER: "samsa_server1", OUR_SLAVE: "gregor_server1"}
"""Which brokers of a pair are this project's, by the name of their configuration file."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a suite: its side, its classes of tests, an empty folder, and its JUnit."""

    suite: CompiledSuite
    side: str
    classes: Sequence[str]
    folder: Path
    console: Path


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite: its name among the exceptions, its folder, its sides (the original first), and the function that runs
    it.

    ``has`` says which classes of the folder belong to it. A suite without a folder needs only packages of Maven.
    """

    name: str
    folder: str | None
    sides: Sequence[str]
    run: Callable[[Job], Results]
    has: Callable[[str], bool] = lambda _: True


def run_end_to_end(job: Job) -> Results:
    """Run RocketMQ's end-to-end tests, against a name server and a broker."""
    folder = job.folder
    configuration = folder / "src/test/resources/env/daily/daily.conf"
    configuration.parent.mkdir(parents=True)
    configuration.write_text("aclEnable = false\ncluster = DefaultCluster\n")
    settings = {
        "junit.jupiter.execution.parallel.config.strategy": "fixed",
        "junit.jupiter.execution.parallel.config.fixed.parallelism": str(AT_A_TIME),
    }
    with _rocketmq(job.side, folder) as name_servers:
        properties = {"namesrvAddr": name_servers}
        run = TestRun(job.console, job.suite.class_path, folder, ALL_DEADLINE_S, properties, settings)
        return run.run(job.classes)


@contextmanager
def _rocketmq(side: str, folder: Path) -> Iterator[str]:
    if side == OURS:
        with BundledServer(folder / "broker", {}) as ours:
            yield ours.address
        return
    with Cluster(release(REAL_ROCKETMQ), folder / "cluster") as cluster:
        cluster.start_name_server()
        cluster.start_broker("broker-a", autoCreateTopicEnable="true")
        yield cluster.name_servers


def run_rocketmq_module(job: Job) -> Results:
    """Run RocketMQ's module ``test``, which starts a name server and two brokers in each Java process."""
    sources = [] if job.side == ORIGINAL else ["OurBroker.java", "rocketmq/IntegrationTestBase.java"]
    return _class_by_class(job, sources, {}, CLASSES_AT_A_TIME)


def run_metaq(job: Job) -> Results:
    """Run MetaQ's integration tests, which start brokers and find them in ZooKeeper."""
    sources = ["OurBroker.java", "OurMetaqBroker.java", *(f"pairs/{each.name}" for each in (JAVA / "pairs").iterdir())]
    if job.side == OURS:
        sources.append("metaq/MetaMorphosisBroker.java")
    with _zookeeper(job.folder / "zookeeper"):
        return _class_by_class(job, sources, {"suites.ours": PAIRS[job.side]})


def _class_by_class(job: Job, sources: Sequence[str], properties: dict[str, str], at_a_time: int = 1) -> Results:
    """Run a Java process for each class of tests, so that a class that never ends does not affect others."""
    python = "\n".join([*ends_with_us(), sys.executable])
    hosts = job.folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    path = [*([str(_compiled(job, sources))] if sources else []), *job.suite.class_path]

    def run(name: str) -> Results:
        home = fresh(job.folder / name.rpartition(".")[2])
        given = {"suites.python": python, "suites.folder": str(home), "jdk.net.hosts.file": str(hosts)}
        given |= {"suites.zookeeper": f"127.0.0.1:{ZOOKEEPER_PORT}", **properties}
        return TestRun(job.console, path, home, CLASS_DEADLINE_S, given, alone=at_a_time > 1).run([name])

    with ThreadPoolExecutor(at_a_time) as threads:
        return merged(list(threads.map(run, job.classes)))


def _compiled(job: Job, sources: Sequence[str]) -> Path:
    """Return the folder with this project's classes, compiled against the suite."""
    classes = fresh(job.folder / "classes")
    path = ":".join([*job.suite.class_path, str(job.console)])
    command = ["javac", "-nowarn", "-Xlint:none", "-cp", path, "-d", str(classes)]
    command += [str(JAVA / each) for each in sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_DEADLINE_S)
    if done.returncode:
        raise RuntimeError(f"javac: {done.stderr}")
    # the default address of ZooKeeper of a MetaQ broker
    (classes / "server.ini").write_text(f"zk.zkConnect=127.0.0.1:{ZOOKEEPER_PORT}\n")
    return classes


@contextmanager
def _zookeeper(folder: Path) -> Iterator[None]:
    command = [*SMALL, *zookeeper_arguments(fresh(folder), ZOOKEEPER_PORT, ZOOKEEPER_TICK_MS)]
    server = JavaServer("ZooKeeper", folder, ZOOKEEPER_PORT, command, _zookeeper_answers)
    server.start()
    try:
        yield
    finally:
        server.kill()


def _zookeeper_answers() -> bool:
    try:
        with socket.create_connection(("127.0.0.1", ZOOKEEPER_PORT), 1) as connection:
            connection.sendall(b"conf")
            return bool(connection.recv(1))
    except OSError:
        return False


def _run_sweep(version: str, job: Job) -> Results:
    return compare(version, ours=job.side == OURS)


def _run_exporter(job: Job) -> Results:
    return exporter.compare(REAL_ROCKETMQ, ":".join(job.suite.class_path), ours=job.side == OURS)


def _run_types(job: Job) -> Results:
    with _zookeeper(job.folder / "zookeeper"):
        return run_types(job.suite.class_path, f"127.0.0.1:{ZOOKEEPER_PORT}", job.folder)


def _is_of_pairs(name: str) -> bool:
    return ".gregor." in name


SUITES: Final = (
    Suite("e2e-v4", "e2e-v4", (ORIGINAL, OURS), run_end_to_end),
    Suite("rocketmq-test", "rocketmq-test", (ORIGINAL, OURS), run_rocketmq_module),
    Suite("metaq-integration", "metaq-integration", (ORIGINAL, OURS), run_metaq, lambda name: not _is_of_pairs(name)),
    *(Suite(f"mqadmin-{version}", None, (ORIGINAL, OURS), partial(_run_sweep, version)) for version in COMMANDS),
    Suite("exporter", "rocketmq-exporter", (ORIGINAL, OURS), _run_exporter),
    Suite("metaq-2.1", "metaq-2.1", (OURS,), _run_types),
    Suite("gregor", "metaq-integration", (ORIGINAL, OURS, OUR_MASTER, OUR_SLAVE), run_metaq, _is_of_pairs),
)
