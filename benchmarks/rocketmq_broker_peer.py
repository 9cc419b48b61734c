"""RocketMQ's clients at our broker beside the same clients at RocketMQ's own: speed, latency, CPU and memory.

    python benchmarks/rocketmq_broker_peer.py --rocketmq 4.9.7 [--runs 3] [--scale 1] [--only sends] [--json FILE]

Without ``--rocketmq`` there is nothing to compare with, and nothing is measured. It starts our broker, and a name
server and a broker of that release, fetched with Maven (docs/testing.md, "RocketMQ"), with a Java of 1 GiB. RocketMQ's
Java client of that release works on both in turn, one run of a program each; a program's second pass counts. Messages
have 100 bytes and go to four queues in turn.

* **sends**: threads of one producer, each of which waits for the answer to its message; once where both brokers answer
  after fsync (``SYNC_FLUSH``), and once where neither waits for it. CPU is measured for the broker process.
* **batches** of 100 messages, after fsync; **pulls** by a pull consumer that asks for the next 32 messages when it has
  the last ones, from one queue; **push**: a group of one push consumer, from its first message to its last one.
* **latency** from before a send to the delivery to a push consumer in the same process, 200 messages a second.
* **memory**: resident, of the broker process alone: before anything was sent, and with connections that have sent one
  heartbeat each, as many of 10,000 as the limit of open files allows.
* **bare**: one thread of sends, and the pull consumer, at our broker and at a Python process that answers from
  constants (``bare_remoting``): the most that one client that waits gets from a server in Python.
* **spark**: the same messages of our broker, by ``format("rocketmq")`` and by ``format("metaq")``.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from bare_peer import listening
from bare_remoting import answer_clients
from connections import SPARE_FILES, allow_files, connect, rss_mib
from figures import Figure, Report, alternating, arguments, seconds
from kafka_peer import scaled
from machine import running
from spark_read import to_noop
from stage import Case, spark

from metaq.model import Address
from peers.jvm import FAST
from peers.rocketmq.ask import request
from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.jars import MODULES, Release, Unavailable, release
from peers.rocketmq.programs import Programs, Rate
from peers.rocketmq.servers import Cluster

QUEUES: Final = 4
RUNS: Final = 3
BYTES: Final = 100
THREADS: Final = (1, 64)
SENDS: Final = {(True, 1): 2_000, (True, 64): 20_000, (False, 1): 10_000, (False, 64): 40_000}
"""Messages of a pass, by durability of the answer, and by threads."""

SEND_AIMS: Final = {True: 1.0, False: 0.5}
BATCHED, READ, DELIVERED = 200_000, 200_000, 1_000
BATCH: Final = 100
SPARK_CASE: Final = Case(BYTES, 1_000_000)
CONNECTIONS: Final = 10_000
HEARTBEAT: Final = 34
NOBODY: Final = "rocketmq_broker_peer: nothing is measured without --rocketmq VERSION"


Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Side:
    """A measured broker, and its client programs. ``create_topic`` takes a name and a number of queues."""

    address: str
    pid: int
    programs: Programs
    create_topic: Callable[[str, int], None]


@dataclass(frozen=True)
class Pair:
    """Both sides, and the address of this broker for MetaQ's clients."""

    ours: Side
    theirs: Side
    metaq_address: str


@contextmanager
def both(there: Release, durable: bool) -> Iterator[Pair]:
    """Run both brokers, which answer after fsync if ``durable``, with new data folders."""
    flush: dict[str, Any] = {"flushDiskType": "SYNC_FLUSH" if durable else "ASYNC_FLUSH"}
    limits = {"maxConnections": CONNECTIONS + SPARE_FILES}
    with (
        tempfile.TemporaryDirectory(prefix="metaq-bench-") as name,
        BundledServer(Path(name) / "ours", flush | limits) as server,
        Cluster(there, Path(name) / "theirs") as cluster,
    ):
        cluster.start_name_server()
        sizes: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 28, "mappedFileSizeConsumeQueue": 6_000_000}
        peer = cluster.start_broker(jvm=FAST, **flush, **sizes)
        programs = [Programs(there, address, deadline_s=300) for address in (server.address, cluster.name_servers)]
        yield Pair(
            Side(server.address, server.pid, programs[0], server.create_topic),
            Side(peer.address, peer.pid, programs[1], cluster.create_topic),
            server.metaq_address,
        )


@dataclass(frozen=True)
class Bench:
    """The figures of our broker beside ``peer``. Without ``has_aims``, the peer is a ceiling, and in their names."""

    report: Report
    ours: Side
    theirs: Side
    peer: str
    runs: int
    scale: float
    has_aims: bool = True

    def sends(self, durable: bool, threads_of: Sequence[int] = THREADS) -> None:
        """Measure single messages, and the CPU for 64 threads of them."""
        for threads in threads_of:
            count = self._count(SENDS[durable, threads])
            topic = self._topic(f"sends-{threads}")
            figures = self._alternating(partial(self._sent, topic, count, threads))
            how = "after fsync" if durable else "before fsync"
            name = f"sends {how}, {threads} thread{'s' * (threads > 1)}"
            ours, theirs = (statistics.median(rate for rate, _ in each) for each in figures)
            self._add(name, "messages/s", ours, theirs, SEND_AIMS[durable])
            if threads > 1:
                ours, theirs = (statistics.median(cpu for _, cpu in each) for each in figures)
                self._add(f"{name}, CPU", "CPU s/million", ours, theirs, None, better="less")

    def batches(self) -> None:
        count, topic = self._count(BATCHED), self._topic("batches")

        def rate(side: Side) -> float:
            return side.programs.send_rates(topic, count, runs=2, batch=BATCH, size=BYTES)[-1].per_s

        self._rates(f"batches of {BATCH} after fsync", rate, 1.0)

    def pulls(self) -> None:
        topic, _ = self._filled("pulls", 1)
        self._rates("pull consumer", lambda side: side.programs.pull_rates(topic, runs=2)[-1].per_s, 0.7)

    def push(self) -> None:
        """Measure a push consumer of a new group for each run."""
        topic, count = self._filled("push", QUEUES)
        groups = iter(range(1000))
        self._rates(
            "push consumer", lambda side: side.programs.push_rate(topic, f"push-{next(groups)}", count).per_s, 0.7
        )

    def latency(self) -> None:
        count, topic, groups = max(100, self._count(DELIVERED)), self._topic("latency"), iter(range(1000))
        figures = self._alternating(
            lambda side: side.programs.latency_ms(topic, f"latency-{next(groups)}", count, size=BYTES)
        )
        for place, percentile, aim in ((0, "p50", 1.5), (1, "p99", None)):
            ours, theirs = (statistics.median(each[place] for each in side) for side in figures)
            self._add(f"put to delivery, {percentile}", "ms", ours, theirs, aim, better="less")

    def memory(self) -> None:
        """Measure memory before the first message, and with many connections."""
        self._add("memory, idle", "MiB", rss_mib(self.ours.pid), rss_mib(self.theirs.pid), 0.2, better="less")
        count = files_for(self._count(CONNECTIONS))
        resident = []
        for side in (self.ours, self.theirs):
            clients = connected(side.address, count)
            resident.append(rss_mib(side.pid))
            for client in clients:
                client.close()
        ours, theirs = resident
        self._add(f"memory, {count} connections", "MiB", ours, theirs, 0.2, better="less")

    def _sent(self, topic: str, count: int, threads: int, side: Side) -> tuple[float, float]:
        """Return messages a second of the second pass, and CPU seconds of the broker per million messages of both."""
        before = running()[side.pid].cpu_s
        rates: list[Rate] = side.programs.send_singles(topic, count, threads, runs=2, size=BYTES)
        cpu_s = running()[side.pid].cpu_s - before
        return rates[-1].per_s, cpu_s / sum(rate.messages for rate in rates) * 1e6

    def _filled(self, name: str, queues: int) -> tuple[str, int]:
        topic, count = self._topic(name, queues), self._count(READ)
        for side in (self.ours, self.theirs):
            side.programs.write(topic, count, size=BYTES, batch=500)
        return topic, count

    def _topic(self, name: str, queues: int = QUEUES) -> str:
        for side in (self.ours, self.theirs):
            side.create_topic(name, queues)
        return name

    def _count(self, count: int) -> int:
        return scaled_count(count, self.scale)

    def _alternating(self, measure: Callable[[Side], Measured]) -> tuple[list[Measured], list[Measured]]:
        pairs = [(measure(self.ours), measure(self.theirs)) for _ in range(self.runs)]
        return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]

    def _rates(self, name: str, rate: Callable[[Side], float], aim: float) -> None:
        ours, theirs = map(statistics.median, self._alternating(rate))
        self._add(name, "messages/s", ours, theirs, aim)

    def _add(self, name: str, unit: str, ours: float, theirs: float, aim: float | None, better: Any = "more") -> None:
        what = f"rocketmq broker, {name}" if self.has_aims else f"rocketmq broker, {name}, beside a {self.peer}"
        aim = aim if self.has_aims else None
        self.report.add(Figure(what, unit, ours, theirs, self.peer, better, aim))


def scaled_count(count: int, scale: float) -> int:
    return max(10, int(count * scale))


def files_for(connections: int) -> int:
    """Return how many connections the limit of open files allows; it is raised as far as possible."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = connections if hard == resource.RLIM_INFINITY else min(connections, hard - SPARE_FILES)
    allow_files(count + SPARE_FILES)
    return count


def connected(address: str, count: int) -> list[socket.socket]:
    """Return connections of ``count`` producers, each of which has sent a heartbeat and has its answer."""

    def heartbeat(number: int) -> bytes:
        beat = {"clientID": f"bench@{number}", "producerDataSet": [{"groupName": "bench"}], "consumerDataSet": []}
        return request(HEARTBEAT, body=json.dumps(beat).encode())

    return connect(Address.parse(address), count, heartbeat, bool)


def beside_bare(report: Report, there: Release, ours: Side, runs: int, scale: float) -> None:
    """Measure the most that one client that waits gets from a server in Python."""
    with listening(answer_clients, scaled_count(READ, scale), BYTES) as (host, port):
        address = f"{host}:{port}"
        programs = Programs(there, address, deadline_s=300)
        bare = Side(address, os.getpid(), programs, lambda topic, queues: None)  # nobody asks for its CPU
        bench = Bench(report, ours, bare, "bare server", runs, scale, has_aims=False)
        bench.sends(durable=False, threads_of=(1,))
        bench.pulls()


def spark_reads(report: Report, there: Release, runs: int, scale: float) -> None:
    """Read the same messages through Spark, as RocketMQ's and as MetaQ's."""
    case = scaled(SPARK_CASE, scale)
    with both(there, durable=False) as pair, spark() as session:
        ours = pair.ours
        ours.create_topic("spark", QUEUES)
        ours.programs.write("spark", case.rows, size=BYTES, batch=500)
        places = {"rocketmq": {"nameServers": ours.address}, "metaq": {"brokers": pair.metaq_address}}
        frames = [
            session.read.format(form).options(**place, subscribe="spark", columns="value").load()
            for form, place in places.items()
        ]
        assert [frame.count() for frame in frames] == [case.rows] * 2
        mine, metaq = alternating([partial(seconds, partial(to_noop, frame)) for frame in frames], runs)
        megarows = case.rows / 1e6
        name = 'rocketmq broker, read through Spark, beside format("metaq")'
        report.add(Figure(name, "M rows/s", megarows / mine, megarows / metaq, "MetaQ source", aim=0.8))


def measure(report: Report, there: Release, runs: int, scale: float, only: str | None) -> None:
    def wanted(kind: str) -> bool:
        return only in (None, kind)

    with both(there, durable=True) as pair:
        bench = Bench(report, pair.ours, pair.theirs, f"RocketMQ {there.version}", runs, scale)
        kinds: dict[str, Callable[[], None]] = {
            "memory": bench.memory,
            "sends": partial(bench.sends, True),
            "batches": bench.batches,
            "pulls": bench.pulls,
            "push": bench.push,
            "latency": bench.latency,
        }
        for kind, figures in kinds.items():
            if wanted(kind):
                figures()
    if wanted("sends") or wanted("bare"):
        with both(there, durable=False) as pair:
            if wanted("sends"):
                Bench(report, pair.ours, pair.theirs, f"RocketMQ {there.version}", runs, scale).sends(False)
            if wanted("bare"):
                beside_bare(report, there, pair.ours, runs, scale)
    if wanted("spark"):
        spark_reads(report, there, runs, scale)


KINDS: Final = ("memory", "sends", "batches", "pulls", "push", "latency", "bare", "spark")


def options(given: Sequence[str] | None = None) -> Any:
    parser = arguments(__doc__, RUNS)
    parser.add_argument("--rocketmq", choices=MODULES, help="the release to start")
    parser.add_argument("--only", choices=KINDS, help="figures of one kind")
    return parser.parse_args(given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    given = options(arguments)
    if not given.rocketmq:
        print(NOBODY)
        return 0
    try:
        with Report("RocketMQ's clients at our broker", given.json) as report:
            measure(report, release(given.rocketmq), given.runs, given.scale, given.only)
    except Unavailable as reason:
        print(f"rocketmq_broker_peer: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
