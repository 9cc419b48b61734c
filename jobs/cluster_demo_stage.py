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
serverPort={port}
dataPath={data}
unflushThreshold=0
unflushInterval=10000
maxSegmentSize=1024*1024*64
maxTransferSize=1024*1024
[zookeeper]
zk.zkConnect={zookeeper}
zk.zkSyncTimeMs=0
[pair]
other={other}
sessionMs={session_ms}
[rocketmq]
enabled=true
port={rocketmq_port}
brokerName={name}
brokerIP1=127.0.0.1
namesrvAddr={name_server}
[topic=*]
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


def start_name_server(processes: Processes) -> Address:
    """Start a name server for RocketMQ's clients."""
    address = Address("127.0.0.1", free_port())
    config = processes.folder / "namesrv.properties"
    stored = processes.folder / "kvConfig.json"  # the default is shared by all name servers of a user
    config.write_text(f"listenPort={address.port}\nbindAddress=127.0.0.1\nkvConfigPath={stored}\n")
    command = [sys.executable, "-m", "metaq_broker.rocketmq.nameserver", "start", "-c", str(config)]
    process = processes.start("name server", command)
    process.wait_for(lambda: f":{address.port}" in process.said(), "it serves")
    return address


class Broker:
    """A ``metaq-broker``, one of the members of a pair. It keeps its folder and its ports when it is started again."""

    def __init__(self, processes: Processes, broker_id: int, letter: str) -> None:
        self._processes, self.broker_id = processes, broker_id
        self.name = f"broker {broker_id}{letter}"
        self.address, self.rocketmq = Address("127.0.0.1", free_port()), Address("127.0.0.1", free_port())
        folder = processes.folder / self.name.replace(" ", "-")
        folder.mkdir()
        self.data, self._config = folder / "data", folder / "server.ini"

    def start(self, other: Address, zookeeper: str, name_server: Address, partitions: int) -> None:
        """Write the configuration, and start it."""
        self._config.write_text(
            BROKER_CONFIG.format(
                broker_id=self.broker_id,
                partitions=partitions,
                port=self.address.port,
                data=self.data,
                zookeeper=zookeeper,
                other=other,
                session_ms=SESSION_MS,
                rocketmq_port=self.rocketmq.port,
                name=broker_name(self.broker_id),
                name_server=name_server,
            )
        )
        self.start_again()

    def start_again(self) -> None:
        """Start it as before, like an operator or systemd."""
        command = [sys.executable, "-m", "metaq_broker.cli", "start", "-f", str(self._config)]
        self._process = self._processes.start(self.name, command)
        self._process.wait_for(lambda: READY.search(self._process.said()) is not None, "it is ready")

    def wait_for(self, happened: Callable[[], bool], what: str) -> None:
        self._process.wait_for(happened, what)

    def kill(self) -> None:
        self._process.kill()

    def stored(self, topic: str) -> dict[str, bytes]:
        """Return the segments of a topic with bytes, by their paths."""
        paths = sorted(self.data.glob(f"{topic}-[0-9]*/*.meta"))
        return {str(path.relative_to(self.data)): content for path in paths if (content := path.read_bytes())}


class BrokerPair:
    """Two brokers with one broker id, which elect their master."""

    def __init__(
        self, processes: Processes, zookeeper: str, broker_id: int, partitions: int, name_server: Address
    ) -> None:
        self.broker_id, self.name = broker_id, f"broker {broker_id}"
        self.members = [Broker(processes, broker_id, letter) for letter in "ab"]
        for member in self.members:
            member.start(self.other(member).address, zookeeper, name_server, partitions)

    def other(self, member: Broker) -> Broker:
        return next(each for each in self.members if each is not member)

    def at(self, address: Address) -> Broker:
        """Return the member at an address."""
        return next(each for each in self.members if each.address == address)

    def are_equal(self, topic: str) -> bool:
        """Return whether both members have the same bytes of a topic."""
        one, other = (member.stored(topic) for member in self.members)
        return one == other


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
