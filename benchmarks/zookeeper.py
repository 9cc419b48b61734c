"""Measures finding brokers in ZooKeeper, and a query while ZooKeeper is down.

python benchmarks/zookeeper.py cluster [--runs 5] [--scale 1] [--json FILE] [--topics 1000] [--folder DIR] python
benchmarks/zookeeper.py away [--seconds 15] [--scale 1] [--json FILE]
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from figures import Figure, Report, arguments, run_part
from machine import below, running
from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.registration.tree import BrokerTree
from metaq_broker.operate.registration.wanted import BrokerNodes, broker_nodes
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from stage import SESSION_S, BrokerProcess, bare_client, running_brokers, running_zookeeper, spark, until

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import encode_block, put
from metaq.backends.metaq.session import Session
from metaq.client.consumer import Run, fetch
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_client import CALLS_AT_ONCE, connected
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.discovery.zookeeper import ZooKeeperDirectory
from metaq.errors import MetaqError
from metaq.model import Address, Message, Partition, TopicPartition
from metaq.protocols.text.commands import Put, Stats

# ---- cluster

ABOUT_CLUSTER: Final = """\
What it costs to find brokers in ZooKeeper: registration, the first plan, a client's first map, a lost master.

ZooKeeper and brokers are real and on this machine; sessions last 2 s. Beside each figure stands what the same
ZooKeeper and the same brokers take in the same run for the least that has to be done:

* registration: the nodes of one broker with many topics, 4 partitions each. Peer: as many nodes made by bare kazoo.
* first plan: the available ranges of all those topics, for a client that just got ZooKeeper's address. Peer: the same
  answers of a broker that is named by its address, over an open connection.
* first map: brokers and their partitions, two brokers with one topic. Peer: a bare kazoo session that reads the two
  addresses, and a ``stats`` on a new connection to each.
* failover: from the kill of a master until a reader that polls has read from its slave. Peer: from the kill until
  ZooKeeper has dropped the master's node; that is the session timeout and nothing of ours.

Times are medians in milliseconds; failover in the worst of three.
"""

PARTITIONS = 4
FAILOVERS = 3
TIMEOUT_S = 10.0


def times(name: str, ours_ms: float, peer: str, peer_ms: float) -> Figure:
    """Return a figure of the table; less is better."""
    return Figure(f"cluster: {name}", "ms", ours_ms, peer_ms, peer, "less")


def timed_ms(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def fresh_directory(hosts: str, root: str) -> ZooKeeperDirectory:
    """Return the brokers as a new process sees them."""
    return ZooKeeperDirectory(TreeCache(ZooKeeperAddress(hosts, root), TIMEOUT_S), SessionPool())


# ---- registration


def topic_sections(count: int) -> str:
    return "".join(f"[topic=topic-{number:05}]\nnumPartitions={PARTITIONS}\n" for number in range(count))


def wanted_nodes(root: str, topics: int) -> BrokerNodes:
    text = (
        "[system]\nbrokerId=0\nnumPartitions=4\nserverPort=0\nunflushThreshold=0\nunflushInterval=10000\n"
        "maxSegmentSize=1024*1024\nmaxTransferSize=1024*1024\ndataPath=unused\n[zookeeper]\nzk.zkEnable=false\n"
    )
    config = parse((text + topic_sections(topics)).encode(), "server.ini")
    return broker_nodes(root, config, Address("127.0.0.1", 8123), {})


def register(hosts: str, nodes: BrokerNodes) -> float:
    with connected(hosts, TIMEOUT_S) as client:
        return timed_ms(lambda: BrokerTree(client).match(nodes, afresh=True))


def create_bare(hosts: str, root: str, parents: int, children: int) -> float:
    """Create as many nodes with kazoo alone: ``parents`` that stay, then ``children`` of the session below them."""
    with bare_client(hosts) as client:
        client.ensure_path(root)
        above = [f"{root}/{number:06}" for number in range(parents)]
        below = [f"{above[number % parents]}/{number:06}" for number in range(children)]

        def create(paths: list[str], ephemeral: bool) -> None:
            for begin in range(0, len(paths), CALLS_AT_ONCE):
                some = paths[begin : begin + CALLS_AT_ONCE]
                for pending in [client.create_async(path, b"x" * 30, ephemeral=ephemeral) for path in some]:
                    pending.get(timeout=TIMEOUT_S)

        begun = time.perf_counter()
        create(above, False)
        create(below, True)
        return (time.perf_counter() - begun) * 1000


def registration(hosts: str, topics: int, runs: int) -> Figure:
    measured, bare, total = [], [], 0
    for number in range(runs):
        nodes = wanted_nodes(f"/registered-{number}", topics)
        ephemeral = [*nodes.topics, *nodes.checksum, nodes.own]
        above = {path.rpartition("/")[0] for path in ephemeral} | nodes.lasting.keys()
        total = len(above) + len(ephemeral)
        measured.append(register(hosts, nodes))
        bare.append(create_bare(hosts, f"/bare-{number}", len(above), len(ephemeral)))
    name = f"registration, {topics:,} topics x {PARTITIONS}, {total:,} nodes"
    return times(name, statistics.median(measured), "bare kazoo, as many nodes", statistics.median(bare))


# ---- the first plan


def fill_topics(address: Address, topics: int) -> None:
    """Put a message into every partition of every topic."""
    session = Session.connect(address)
    places = itertools.product(range(topics), range(PARTITIONS))
    while some := list(itertools.islice(places, 256)):
        commands = [Put(f"topic-{topic:05}", index, b"x" * 100, 0, 0) for topic, index in some]
        for opaque in [session.post(command) for command in commands]:
            session.wait(opaque)
    session.close()


def first_plan(folder: Path, hosts: str, topics: int, runs: int) -> Figure:
    broker = BrokerProcess(folder, hosts, 0, "zk.zkRoot=/plan\n" + topic_sections(topics))
    with running_brokers(broker):
        fill_topics(broker.address, topics)
        names = [f"topic-{number:05}" for number in range(topics)]
        named = FixedDirectory([broker.address], SessionPool())
        if len(named.available(names)) != topics * PARTITIONS:
            raise SystemExit("the broker does not hold what was put")
        found = [timed_ms(lambda: fresh_directory(hosts, "/plan").available(names)) for _ in range(runs)]
        asked = [timed_ms(lambda: named.available(names)) for _ in range(runs)]
    name = f"first plan, {topics * PARTITIONS:,} partitions"
    return times(name, statistics.median(found), "the broker alone, connected", statistics.median(asked))


# ---- a client's first map


def bare_map(hosts: str, root: str) -> None:
    """Find the brokers and their partitions with as little work as possible."""
    with bare_client(hosts) as client:
        ids = client.get_children(f"{root}/brokers/ids")
        places = [client.get(f"{root}/brokers/ids/{broker_id}/master")[0].decode() for broker_id in ids]
    for place in places:
        session = Session.connect(Address.parse(place))
        session.call(Stats("offsets", 0))
        session.close()


def first_map(folder: Path, hosts: str, runs: int) -> Figure:
    sections = "zk.zkRoot=/map\n[topic=orders]\n"
    brokers = [BrokerProcess(folder / str(broker_id), hosts, broker_id, sections) for broker_id in (0, 1)]
    with running_brokers(*brokers):
        for broker in brokers:
            session = Session.connect(broker.address)
            put(session, "orders", 0, Message(b"x"))
            session.close()
        found = [timed_ms(lambda: fresh_directory(hosts, "/map").available(["orders"])) for _ in range(runs * 5)]
        bare = [timed_ms(lambda: bare_map(hosts, "/map")) for _ in range(runs * 5)]
    return times("first map, 2 brokers", statistics.median(found), "bare kazoo and stats", statistics.median(bare))


# ---- a lost master


def try_read(directory: ZooKeeperDirectory, pool: SessionPool, partition: Partition) -> bool:
    """Read the first message, from the current broker of the partition."""
    try:
        address = directory.partitions("orders")[partition]
        with pool.lease(address) as session:
            return isinstance(fetch(session, "orders", partition.index, 0, 1 << 16), Run)
    except (MetaqError, KeyError):
        return False


def failover_once(hosts: str, master: BrokerProcess) -> tuple[float, float]:
    """Return the milliseconds from the kill until ZooKeeper drops the node, and until a reader has read from the slave.
    """
    pool, partition = SessionPool(), Partition(0, 0)
    directory = ZooKeeperDirectory(TreeCache(ZooKeeperAddress(hosts, "/failover"), TIMEOUT_S), pool)
    gone: list[float] = []
    with bare_client(hosts) as watcher:
        watcher.exists("/failover/brokers/ids/0/master", watch=lambda _event: gone.append(time.perf_counter()))
        until(lambda: try_read(directory, pool, partition), "the reader to read from the master")
        if gone:
            raise SystemExit("this machine is too busy: the master lost its session before it was killed")
        begun = time.perf_counter()
        master.kill()
        until(lambda: try_read(directory, pool, partition), "the reader to read from the slave", pause_s=0.02)
        read = time.perf_counter()
        until(lambda: bool(gone), "ZooKeeper to drop the node")
    return (gone[0] - begun) * 1000, (read - begun) * 1000


def failover(folder: Path, hosts: str) -> Figure:
    root, topic = "zk.zkRoot=/failover\n", "[topic=orders]\n"
    master = BrokerProcess(folder / "master", hosts, 0, root + topic)
    role = f"[slave]\nslaveId=0\nmaster={master.address}\nslaveMaxDelayInMills=20\n"
    slave = BrokerProcess(folder / "slave", hosts, 0, root + role + topic)
    where, rounds = TopicPartition("orders", Partition(0, 0)), []
    with running_brokers(master, slave):
        session = Session.connect(master.address)
        put(session, "orders", 0, Message(b"x" * 100))
        session.close()
        copies = FixedDirectory([slave.address], SessionPool())
        until(lambda: where in (ends := copies.ends(["orders"])) and ends[where].end > 0, "the slave to have a copy")
        for number in range(FAILOVERS):
            if number:
                master.start()
            rounds.append(failover_once(hosts, master))
    expired_ms, read_ms = max(rounds, key=lambda each: each[1])
    return times(f"failover to a slave, sessions of {SESSION_S:g} s", read_ms, "ZooKeeper drops the node", expired_ms)


def figures(folder: Path, topics: int, runs: int) -> Iterator[Figure]:
    """Yield the figures as they are measured."""
    with running_zookeeper(folder / "zookeeper") as hosts:
        for part in ("map", "failover"):
            (folder / part).mkdir()
        yield registration(hosts, topics, runs)
        yield first_plan(folder / "plan", hosts, topics, runs)
        yield first_map(folder / "map", hosts, runs)
        yield failover(folder / "failover", hosts)


def main_cluster(words: Sequence[str] | None = None) -> None:
    parser = arguments(ABOUT_CLUSTER)
    parser.add_argument("--topics", type=int, default=1000, help="topics of the broker with many, at scale 1")
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    given = parser.parse_args(words)
    with (
        tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=given.folder) as folder,
        Report("Brokers in a cluster", given.json) as report,
    ):
        for figure in figures(Path(folder), max(1, int(given.topics * given.scale)), given.runs):
            report.add(figure)


# ---- away

ABOUT_AWAY: Final = """\
How many micro-batches a second a query makes while ZooKeeper is away.

One broker that registers in ZooKeeper, one query that finds it there and works through a backlog in small
micro-batches, once without and once with ``commitGroupOffsets``. Its way to ZooKeeper goes through a relay. Counted
are micro-batches in ``--seconds`` (``--scale`` multiplies them) with ZooKeeper up, and, beginning with the moment in
which it goes away: refused (nobody listens), frozen (SIGSTOP), cut in one direction (requests arrive, answers do not).
The peer is the same query with ZooKeeper up. ``--runs`` changes nothing. Needs Linux.
"""

TOPIC = "bench"
MESSAGES = 400_000
BATCH_BYTES = 10_000
FIRST_BATCHES = 10
"""Micro-batches before the first measurement."""

AIM = 0.8
"""The least fraction of the micro-batches with ZooKeeper up."""

BACK_S = 25.0
"""Longer than the pause after ZooKeeper did not answer, in seconds."""


class Relay:
    """A relay to ``there`` that can be closed, or made to drop the answers."""

    def __init__(self, there: Address) -> None:
        self._there, self._lost = there, False
        self._open: list[socket.socket] = []
        self._listen(0)
        self.port = self._listener.getsockname()[1]

    def _listen(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Close all connections, and stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._end_all()

    def listen_again(self) -> None:
        self._listen(self.port)

    def lose_answers(self, lost: bool) -> None:
        """Pass on requests, but no answers; or all again, on new connections."""
        self._lost = lost
        if not lost:
            self._end_all()

    def _end_all(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((self._there.host, self._there.port))
                self._open += [near, far]
                for source, sink, answers in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pass_on, args=(source, sink, answers), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError), source, sink:
            while data := source.recv(1 << 16):
                if not (answers and self._lost):
                    sink.sendall(data)


def fill(address: Address) -> None:
    """Put the backlog."""
    session = Session.connect(address)
    writer = BatchWriter(session, TOPIC)
    block = encode_block([Message(bytes(100))] * 1000)
    for number in range(MESSAGES // 1000):
        writer.write(number % 4, *block)
    writer.flush()
    session.close()


@contextmanager
def working(session: SparkSession, zookeeper: str, groups: bool) -> Iterator[StreamingQuery]:
    """Run the query; it has made its first micro-batches when the block begins."""
    options = {"zookeeper": zookeeper, "subscribe": TOPIC, "startingOffsets": "earliest"}
    options |= {"maxBytesPerTrigger": str(BATCH_BYTES), "commitGroupOffsets": str(groups).lower(), "group": "bench"}
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as checkpoint:
        rows = session.readStream.format("metaq").options(**options).load()
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        until(lambda: batches(query) >= FIRST_BATCHES, "the first micro-batches")
        try:
            yield query
        finally:
            query.stop()


def batches(query: StreamingQuery) -> int:
    """Return the number of micro-batches so far."""
    last = query.lastProgress
    return 0 if last is None else last.batchId + 1


def rate(query: StreamingQuery, seconds: float) -> float:
    """Return micro-batches a second from now on."""
    before, begun = batches(query), time.perf_counter()
    time.sleep(seconds)
    return (batches(query) - before) / (time.perf_counter() - begun)


def zookeeper_pid(folder: Path) -> int:
    """Return the process of the ZooKeeper with its files in ``folder``."""
    me = running()
    for stat in below(os.getpid(), me):
        if str(folder).encode() in Path(f"/proc/{stat.pid}/cmdline").read_bytes() and stat.name == "java":
            return stat.pid
    raise SystemExit("there is no ZooKeeper process")


def measure(report: Report, query: StreamingQuery, relay: Relay, pid: int, kind: str, seconds: float) -> None:
    up = rate(query, seconds)
    report.add(Figure(f"micro-batches, {kind}, ZooKeeper up", "batches/s", up))
    states: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "refused": (relay.refuse, relay.listen_again),
        "frozen": (lambda: signal_to(pid, signal.SIGSTOP), lambda: signal_to(pid, signal.SIGCONT)),
        "cut in one direction": (lambda: relay.lose_answers(True), lambda: relay.lose_answers(False)),
    }
    for state, (begin, end) in states.items():
        begin()
        report.add(
            Figure(
                f"micro-batches, {kind}, ZooKeeper {state}", "batches/s", rate(query, seconds), up, "up", "more", AIM
            )
        )
        end()
        time.sleep(BACK_S)


def signal_to(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)


def main_away(given: Sequence[str] | None = None) -> int:
    """Run the measurements; return the exit status: 1 if one misses its aim."""
    parser = arguments(ABOUT_AWAY)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each state")
    options = parser.parse_args(given)
    seconds = options.seconds * options.scale
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
        place = Path(folder) / "zookeeper"
        with (
            Report("A query while ZooKeeper is away", options.json) as report,
            running_zookeeper(place) as hosts,
            spark(unix_socket=False) as session,
        ):
            broker = BrokerProcess(Path(folder) / "broker", hosts, 0, f"[topic={TOPIC}]\n")
            with running_brokers(broker):
                fill(broker.address)
                relay, pid = Relay(Address.parse(hosts)), zookeeper_pid(place)
                for kind, groups in (("without group offsets", False), ("with commitGroupOffsets", True)):
                    with working(session, f"127.0.0.1:{relay.port}/meta", groups) as query:
                        measure(report, query, relay, pid, kind, seconds)
    return int(any(figure.met is False for figure in report.figures))


PARTS: Final[Mapping[str, Callable[[Sequence[str]], int | None]]] = {
    "cluster": main_cluster,
    "away": main_away,
}

if __name__ == "__main__":
    sys.exit(run_part(PARTS))
