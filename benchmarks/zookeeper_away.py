"""How many micro-batches a second a query makes while ZooKeeper is away.

    python benchmarks/zookeeper_away.py [--scale 1] [--json FILE] [--seconds 15]

One broker that registers in ZooKeeper, one query that finds it there and works through a backlog in small
micro-batches, once without and once with ``commitGroupOffsets``. Its way to ZooKeeper goes through a relay. Counted
are micro-batches in ``--seconds`` (``--scale`` multiplies them) with ZooKeeper up, and, beginning with the moment in
which it goes away: refused (nobody listens), frozen (SIGSTOP), cut in one direction (requests arrive, answers do not).
The peer is the same query with ZooKeeper up. ``--runs`` changes nothing. Needs Linux.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster_stage import BrokerProcess, running_brokers, running_zookeeper, until
from figures import Figure, Report, arguments
from processes import below, running
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_bench import spark

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.puts import encode_block
from metaq.backends.metaq.session import Session
from metaq.model import Address, Message

TOPIC = "bench"
MESSAGES = 400_000
BATCH_BYTES = 10_000
AIM = 0.8
"""At least this part of the micro-batches with ZooKeeper up."""

BACK_S = 25.0
"""Longer than ZooKeeper is left alone after it did not answer."""


class Relay:
    """A way to ``there`` that can be closed, or made to lose the answers."""

    def __init__(self, there: Address) -> None:
        self._there, self._lost = there, False
        self._open: list[socket.socket] = []
        self._listen(0)
        self.port = self._listener.getsockname()[1]

    def _listen(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """End all connections, and listen no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._end_all()

    def listen_again(self) -> None:
        """After ``refuse``."""
        self._listen(self.port)

    def lose_answers(self, lost: bool) -> None:
        """Pass requests on, but no answers; or all again, on new connections."""
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
    """The backlog."""
    session = Session.connect(address)
    writer = BatchWriter(session, TOPIC)
    block = encode_block([Message(bytes(100))] * 1000)
    for number in range(MESSAGES // 1000):
        writer.write(number % 4, *block)
    writer.flush()
    session.close()


@contextmanager
def working(session: SparkSession, zookeeper: str, groups: bool) -> Iterator[StreamingQuery]:
    """The query, when it has made its first micro-batches."""
    options = {"zookeeper": zookeeper, "subscribe": TOPIC, "startingOffsets": "earliest"}
    options |= {"maxBytesPerTrigger": str(BATCH_BYTES), "commitGroupOffsets": str(groups).lower(), "group": "bench"}
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as checkpoint:
        rows = session.readStream.format("metaq").options(**options).load()
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        until(lambda: batches(query) >= 10, "the first micro-batches")
        try:
            yield query
        finally:
            query.stop()


def batches(query: StreamingQuery) -> int:
    """How many there have been."""
    last = query.lastProgress
    return 0 if last is None else last.batchId + 1


def rate(query: StreamingQuery, seconds: float) -> float:
    """Micro-batches a second from now on."""
    before, begun = batches(query), time.perf_counter()
    time.sleep(seconds)
    return (batches(query) - before) / (time.perf_counter() - begun)


def zookeeper_pid(folder: Path) -> int:
    """The process of the ZooKeeper with its files in ``folder``."""
    me = running()
    for stat in below(os.getpid(), me):
        if str(folder).encode() in Path(f"/proc/{stat.pid}/cmdline").read_bytes() and stat.name == "java":
            return stat.pid
    raise SystemExit("there is no ZooKeeper process")


def measure(report: Report, query: StreamingQuery, relay: Relay, pid: int, kind: str, seconds: float) -> None:
    """The figures of one query."""
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
    """Send a signal to the ZooKeeper."""
    os.kill(pid, number)


def main(given: Sequence[str] | None = None) -> int:
    """Run the measurements; return the exit status: 1 if one misses its aim."""
    parser = arguments(__doc__)
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


if __name__ == "__main__":
    sys.exit(main())
