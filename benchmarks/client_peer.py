"""The Python client on this project's broker beside confluent-kafka and aiokafka on a Kafka, each on the same work.

    python benchmarks/client_peer.py [--kafka local|HOST:PORT] [--runs 3] [--scale 1] [--json FILE]

Without ``--kafka`` there is nothing to compare with, and nothing is measured. Both packages are needed:
``pip install '.[bench]'``. Every measurement is a process of its own (``client_work.py``), in turn. Both
brokers acknowledge after the page cache, and are elsewhere on this machine, with two partitions.

* **produce**: messages one by one, each with a future (or callback) of its own, until the last is acknowledged;
  ``send_many`` has 1,000 a call. **consume**: all messages of the topic by one member of a group.
* CPU is measured for the client's process, for a million messages.
* **groups**: until a first member has both partitions; until a second one has one of them; until, after that left, the
  first has both again. Ours over ZooKeeper.
* **idle**: CPU of a consumer that waits for ten seconds.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from client_work import BATCH, IDLE_S
from figures import Figure, Report, arguments
from stage import running_broker, running_zookeeper, started

from peers.kafka import NoJars, kafka_jars, local_kafka

PARTITIONS: Final = 2
CASES: Final = ((100, 200_000), (1000, 60_000))
RUNS: Final = 3
PEERS: Final = {"confluent": "confluent-kafka", "aiokafka": "aiokafka"}
MODULES: Final = {"confluent_kafka": "confluent-kafka", "aiokafka": "aiokafka"}
OURS: Final = {"metaq": "submit", "metaq-many": "send_many", "metaq-async": "await submit"}
READS: Final = {"metaq": "for", "metaq-many": "fetch", "metaq-async": "await fetch"}
AIMS: Final = {"aiokafka": 2.0, "confluent": 0.5}
NOBODY: Final = "client_peer: nothing is measured without --kafka"
DEADLINE_S: Final = 300.0

Times = Mapping[str, float]


@dataclass(frozen=True)
class Stage:
    """The addresses of both brokers, and of a ZooKeeper with a broker of this project."""

    ours: str
    kafka: str
    zookeeper: str

    def run(self, client: str, does: str, topic: str, rows: int = 0, payload_bytes: int = 0) -> Times:
        address = self.kafka if client in PEERS else self.zookeeper if does == "members" else self.ours
        command = [sys.executable, str(Path(__file__).with_name("client_work.py")), client, does, address, topic]
        command += [str(rows), str(payload_bytes)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=DEADLINE_S)
        found: dict[str, float] = json.loads(done.stdout)
        return found


class Bench:
    def __init__(self, report: Report, stage: Stage, runs: int) -> None:
        self._report, self._stage, self._runs = report, stage, runs

    def throughput(self, payload_bytes: int, rows: int) -> None:
        clients = [*OURS, *PEERS]
        topics = {client: f"bench-{client}-{payload_bytes}" for client in clients}
        for does, names in (("produce", OURS), ("consume", READS)):
            times: dict[str, list[Times]] = {client: [] for client in clients}
            for number in range(self._runs):
                for client in clients:
                    topic = f"{topics[client]}-{number if does == 'produce' else 0}"
                    times[client].append(self._stage.run(client, does, topic, rows, payload_bytes))
            self._compare(f"{does}, {payload_bytes} B", rows, names, times)

    def _compare(self, name: str, rows: int, names: Mapping[str, str], times: Mapping[str, Sequence[Times]]) -> None:
        def median(client: str, key: str) -> float:
            return statistics.median(each[key] for each in times[client])

        for ours, call in names.items():
            for peer, peer_name in PEERS.items():
                rate, their_rate = (rows / median(client, "wall_s") / 1e3 for client in (ours, peer))
                what = f"client, {name}, {call}, beside {peer_name}"
                self._report.add(Figure(what, "k messages/s", rate, their_rate, peer_name, aim=AIMS[peer]))
                cpu, their_cpu = (median(client, "cpu_s") / rows * 1e6 for client in (ours, peer))
                self._report.add(Figure(f"{what}, CPU", "s/M messages", cpu, their_cpu, peer_name, "less"))

    def groups(self) -> None:
        """Measure how long members wait for their partitions."""
        times = {client: [self._stage.run(client, "members", "bench-members") for _ in range(self._runs)]
                 for client in ("metaq", "confluent")}  # fmt: skip
        for key in ("start-up ", "join ", "leave "):
            ours, theirs = (statistics.median(each[f"{key}wall_s"] for each in some) for some in times.values())
            self._report.add(Figure(f"client, group, {key.strip()}", "s", ours, theirs, "confluent-kafka", "less"))

    def idle(self) -> None:
        """Measure the CPU of waiting."""
        ours, *theirs = (
            self._stage.run(client, "idle", "bench-idle")["cpu_s"] / IDLE_S * 100
            for client in ("metaq", "confluent", "aiokafka")
        )
        for percent, name in zip(theirs, PEERS.values(), strict=True):
            self._report.add(
                Figure(f"client, idle consumer, beside {name}", "% of a core", ours, percent, name, "less")
            )


def missing() -> list[str]:
    """Return the packages that are not installed."""
    return [package for module, package in MODULES.items() if importlib.util.find_spec(module) is None]


def options(given: Sequence[str] | None = None) -> Any:
    parser = arguments(__doc__, RUNS)
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka broker, or 'local' to start one")
    parser.add_argument("--only", choices=["throughput", "groups", "idle"], help="figures of one kind")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    asked = options(given)
    if not asked.kafka:
        print(NOBODY)
        return 0
    if packages := missing():
        print(f"client_peer: {' and '.join(packages)} missing: pip install {' '.join(packages)}", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-bench-")))
        kafka = asked.kafka
        if kafka == "local":
            try:
                kafka = stack.enter_context(local_kafka(kafka_jars(), PARTITIONS))
            except NoJars as reason:
                print(f"client_peer: {reason}", file=sys.stderr)
                return 1
        broker = stack.enter_context(running_broker(folder / "broker", PARTITIONS, unflush_threshold=1_000_000))
        hosts = stack.enter_context(running_zookeeper(folder / "zookeeper"))
        stack.enter_context(started("start", "-f", str(_registered(folder / "member", hosts)), "--log-level", "error"))
        stage = Stage(str(broker.address), kafka, f"zk://{hosts}/meta")
        with Report("The Python client", asked.json) as report:
            bench = Bench(report, stage, asked.runs)
            if asked.only in (None, "throughput"):
                for payload_bytes, rows in CASES:
                    bench.throughput(payload_bytes, max(2 * BATCH, int(rows * asked.scale)))
            if asked.only in (None, "groups"):
                bench.groups()
            if asked.only in (None, "idle"):
                bench.idle()
    return 0


def _registered(folder: Path, hosts: str) -> Path:
    """Write the settings of a broker that registers, with a topic; return the file."""
    folder.mkdir()
    settings = folder / "server.ini"
    settings.write_text(
        f"[system]\nbrokerId=1\nnumPartitions={PARTITIONS}\nserverPort=0\nhostName=127.0.0.1\n"
        f"unflushThreshold=0\nunflushInterval=10000\nmaxSegmentSize=1024*1024\nmaxTransferSize=1024*1024\n"
        f"dataPath={folder / 'data'}\ndiskFreeMinBytes=0\n[zookeeper]\nzk.zkConnect={hosts}\n"
        f"[topic=bench-members]\n"
    )
    return settings


if __name__ == "__main__":
    sys.exit(main())
