"""The processes of the cluster demo: ZooKeeper, brokers and a Spark cluster, all on the loopback interface."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark
from cluster_demo_messages import broker_name
from cluster_demo_processes import Process, Processes
from demo_stage import READY, ROOT

from metaq.model import Address

SPARK_HOME = Path(pyspark.__path__[0])
WORKERS = 2
SESSION_MS, TICK_MS = 4000, 500
ANSWER_S = 1.0
"""A ZooKeeper may never answer a connection that it accepted during its start."""

SOCKET_FOLDER_BYTES_MAX = 60
"""A Unix socket's path has some hundred bytes at most, and Spark's names take more than forty."""

ZOOKEEPER_JARS = ("zookeeper", "slf4j-api", "metrics-core", "snappy-java", "netty")
ZOOKEEPER_CONFIG = """\
tickTime={tick_ms}
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=conf
"""
BROKER_CONFIG = """\
[system]
brokerId={broker_id}
numPartitions={partitions}
dataPath={data}
unflushThreshold=0
unflushInterval=10000
maxSegmentSize=1024*1024*64
maxTransferSize=1024*1024
[zookeeper]
zk.zkConnect={zookeeper}
zk.zkSessionTimeoutMs={session_ms}
zk.zkSyncTimeMs=0
{role}
{rocketmq}
[topic=*]
"""


ROCKETMQ_CONFIG = """\
[rocketmq]
enabled=true
port={port}
brokerName={name}
brokerIP1=127.0.0.1
namesrvAddr={name_servers}
"""


def start_zookeeper(processes: Processes) -> str:
    """Start a ZooKeeper from the jars of PySpark; return ``HOST:PORT``."""
    port = free_port()
    data, config = processes.folder / "zookeeper", processes.folder / "zoo.cfg"
    data.mkdir()
    config.write_text(ZOOKEEPER_CONFIG.format(tick_ms=TICK_MS, data=data, port=port))
    jars = [str(jar) for name in ZOOKEEPER_JARS for jar in (SPARK_HOME / "jars").glob(f"{name}-*.jar")]
    java = ["java", "-Xmx64m", "-XX:+UseSerialGC", "-cp", ":".join(jars)]
    process = processes.start("ZooKeeper", [*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", config])
    process.wait_for(lambda: _serves(port, data), "it serves")
    return f"127.0.0.1:{port}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _serves(port: int, data: Path) -> bool:
    """Return whether the server at ``port`` is the one that was started."""
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
            connection.sendall(b"conf")
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    except OSError:
        return False
    return f"dataDir={data}".encode() in answer


class Broker:
    """A ``metaq-broker`` that registers in ZooKeeper: a master, or the asynchronous slave of ``master``.

    It keeps its folder and its ports when it is started again. A master also serves RocketMQ's clients, and registers
    at ``name_server``, the name server on another master's port.
    """

    def __init__(
        self,
        processes: Processes,
        zookeeper: str,
        broker_id: int,
        partitions: int,
        master: Address | None = None,
        name_server: Address | None = None,
    ) -> None:
        self._processes = processes
        self.broker_id = broker_id
        self.name = f"broker {broker_id}" if master is None else f"slave of broker {broker_id}"
        folder = processes.folder / self.name.replace(" ", "-")
        folder.mkdir()
        self.rocketmq = Address("127.0.0.1", free_port())
        self._config = folder / "server.ini"
        self._config.write_text(
            BROKER_CONFIG.format(
                broker_id=broker_id,
                partitions=partitions,
                data=folder / "data",
                zookeeper=zookeeper,
                session_ms=SESSION_MS,
                role="" if master is None else f"[slave]\nslaveId=0\nmaster={master}",
                rocketmq="" if master is not None else self._for_rocketmq(name_server),
            )
        )
        self._process, self.address = self._start(port=0)

    def _for_rocketmq(self, name_server: Address | None) -> str:
        port, name = self.rocketmq.port, broker_name(self.broker_id)
        return ROCKETMQ_CONFIG.format(port=port, name=name, name_servers=name_server or "")

    def _start(self, port: int) -> tuple[Process, Address]:
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "metaq_broker.cli",
            "start",
            "-f",
            self._config,
            "--port",
            str(port),
        ]
        process = self._processes.start(self.name, command)
        process.wait_for(lambda: READY.search(process.said()) is not None, "it is ready")
        [address] = READY.findall(process.said())
        return process, Address.parse(address)

    def start_again(self) -> None:
        """Start it as before, like an operator or systemd. It waits until ZooKeeper has ended the old session."""
        self._process, self.address = self._start(self.address.port)

    def wait_for(self, happened: Callable[[], bool], what: str) -> None:
        self._process.wait_for(happened, what)

    def kill(self) -> None:
        self._process.kill()


@dataclass(frozen=True)
class SparkCluster:
    """A standalone master at the URL ``master``, with ``WORKERS`` workers."""

    processes: Processes
    master: str

    def submit(self, job: Path, arguments: Sequence[str | Path]) -> Process:
        settings = ["spark.ui.enabled=false", "spark.ui.showConsoleProgress=false", "spark.driver.host=127.0.0.1"]
        if len(os.fsencode(self.processes.temporary)) > SOCKET_FOLDER_BYTES_MAX:
            settings.append("spark.python.unix.domain.socket.enabled=false")
        options = [part for setting in settings for part in ("--conf", setting)]
        command: list[str | Path] = [
            SPARK_HOME / "bin" / "spark-submit",
            "--master",
            self.master,
            *options,
            job,
            *arguments,
        ]
        variables = {
            **_SPARK_VARIABLES,
            "SPARK_CONF_DIR": str(ROOT / "spark-conf"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        return self.processes.start("pipeline", command, variables)


# The first one keeps the web pages on the loopback interface, too.
_SPARK_VARIABLES = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(SPARK_HOME)}


def start_spark(processes: Processes) -> SparkCluster:
    """Start a standalone Spark master and its workers, and wait until the workers are registered."""
    process = _spark_daemon(processes, "Spark master", "master.Master")
    starting = re.compile(r"Starting Spark master at (spark://\S+)")
    process.wait_for(lambda: starting.search(process.said()) is not None, "it has an address")
    master = starting.findall(process.said())[0]
    for number in range(WORKERS):
        arguments = ["--cores", "1", "--memory", "1g", "--work-dir", processes.folder / f"work-{number}", master]
        _spark_daemon(processes, f"Spark worker {number}", "worker.Worker", *arguments)
    process.wait_for(lambda: process.said().count("Registering worker ") >= WORKERS, "its workers are registered")
    return SparkCluster(processes, master)


def _spark_daemon(processes: Processes, name: str, entry: str, *arguments: str | Path) -> Process:
    command: list[str | Path] = [
        SPARK_HOME / "bin" / "spark-class",
        f"org.apache.spark.deploy.{entry}",
        "--host",
        "127.0.0.1",
    ]
    return processes.start(name, [*command, "--port", "0", "--webui-port", "0", *arguments], _SPARK_VARIABLES)
