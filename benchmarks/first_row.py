"""How long one message takes to become a row: in a running query, and in a query that is just started.

python benchmarks/first_row.py latency [--messages 20] [--runs 5] [--scale 1] [--json FILE]
python benchmarks/first_row.py start-up [--runs 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from ceilings import ARRIVAL, PAYLOAD_BYTES, Arrivals, Tail, Trivial
from figures import Figure, Report, alternating, arguments, run_part
from pyspark.sql import DataFrame, SparkSession
from stage import TOPIC, broker, spark

from metaq.backends.metaq.pool import SessionPool
from metaq.client.producer import Producer
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address, Message

# ---- latency

ABOUT_LATENCY: Final = """\
How long a message takes from its producer to a row in a sink, one message at a time.

A producer puts a message with its own clock in it; a streaming query with ``format("metaq")`` as its source, in
micro-batches as fast as they can, hands it to a sink in Python, which looks at the clock of the same machine and tells
the producer by datagram. The next message goes a random part of a poll later, so that each meets another moment of the
query. The put waits for its acknowledgement, so the broker's fsync is part of it.

The peer is the same query with the trivial source ``tail`` and nothing behind it but a file, to which each message is
appended. Both run in turn, in blocks of ``--messages``, whose first few do not count; p50 and p99 are over all blocks.
"""

WARM_UP_MESSAGES = 3
PAUSE_S_MAX = 0.1
DEADLINE_S = 60.0
PINGS = "pings"

Send = Callable[[bytes], object]


class Listener:
    """Receives the sink's datagrams."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(DEADLINE_S)
        self.port: int = self._socket.getsockname()[1]

    def latency_ms(self, sent_ns: int) -> float:
        """Wait for the row that was sent at ``sent_ns``; ignore earlier rows."""
        while True:
            reported_ns, arrived_ns = ARRIVAL.unpack(self._socket.recv(ARRIVAL.size))
            if reported_ns == sent_ns:
                return float(arrived_ns - sent_ns) / 1e6

    def close(self) -> None:
        self._socket.close()


class Peer:
    """A source with a function that gives it a message; collects the latency of each message."""

    def __init__(self, rows: Callable[[], DataFrame], send: Send, listener: Listener, pauses: random.Random) -> None:
        self._rows, self._send, self._listener, self._pauses = rows, send, listener, pauses
        self.latencies_ms: list[float] = []

    def block(self, messages: int) -> None:
        """Start a new query for ``messages`` messages, after a few that do not count."""
        with self._query():
            taken = [self._ping() for _ in range(WARM_UP_MESSAGES + messages)]
        self.latencies_ms += taken[WARM_UP_MESSAGES:]

    @contextmanager
    def _query(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
            writer = self._rows().writeStream.format("arrivals").option("port", self._listener.port)
            query = writer.option("checkpointLocation", str(Path(folder) / "checkpoint")).start()
            try:
                query.processAllAvailable()  # from now on, all messages are new
                yield
            finally:
                query.stop()

    def _ping(self) -> float:
        time.sleep(self._pauses.uniform(0, PAUSE_S_MAX))
        sent_ns = time.monotonic_ns()
        self._send(sent_ns.to_bytes(8) + bytes(PAYLOAD_BYTES - 8))
        return self._listener.latency_ms(sent_ns)


def metaq_side(session: SparkSession, address: str, stack: ExitStack) -> tuple[Callable[[], DataFrame], Send]:
    pool = SessionPool()
    stack.callback(pool.close)
    producer = Producer(FixedDirectory([Address.parse(address)], pool), pool)
    producer.put(PINGS, Message(bytes(PAYLOAD_BYTES)))

    def rows() -> DataFrame:
        reader = session.readStream.format("metaq").option("brokers", address).option("subscribe", PINGS)
        return reader.option("startingOffsets", "latest").option("columns", "value").load()

    return rows, lambda payload: producer.put(PINGS, Message(payload))


def tail_side(session: SparkSession, folder: Path) -> tuple[Callable[[], DataFrame], Send]:
    path = folder / "pings"
    path.touch()

    def send(payload: bytes) -> None:
        with path.open("ab") as file:
            file.write(payload)

    return lambda: session.readStream.format("tail").option("path", str(path)).load(), send


def measure(given: argparse.Namespace, stack: ExitStack) -> tuple[list[float], list[float]]:
    """Return the milliseconds of every message that counts: this project's, the peer's."""
    address = stack.enter_context(broker(1))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-bench-")))
    session = stack.enter_context(spark())
    for source in (Tail, Arrivals):
        session.dataSource.register(source)
    listener, pauses = Listener(), random.Random(7)
    stack.callback(listener.close)
    ours = Peer(*metaq_side(session, address, stack), listener, pauses)
    peer = Peer(*tail_side(session, folder), listener, pauses)
    for side in (ours, peer):  # Python workers, compiled Java code
        side.block(given.messages)
        side.latencies_ms.clear()
    for _ in range(given.runs):
        for side in (ours, peer):
            side.block(given.messages)
    return ours.latencies_ms, peer.latencies_ms


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main_latency(words: Sequence[str] | None = None) -> None:
    parser = arguments(ABOUT_LATENCY)
    parser.add_argument("--messages", type=int, default=20, help="measured messages of a block (default 20)")
    given = parser.parse_args(words)
    given.messages = max(2, round(given.messages * given.scale))
    with ExitStack() as stack:
        report = stack.enter_context(Report("From put to row", given.json))
        ours, peer = measure(given, stack)
        for percent in (50, 99):
            name, ours_ms, peer_ms = f"put to row, p{percent}", percentile(ours, percent), percentile(peer, percent)
            report.add(Figure(name, "ms", ours_ms, peer_ms, "a tailed file", better="less"))


# ---- start-up

ABOUT_START_UP: Final = """\
How long the first row takes: of a fresh query in a fresh session, and what imports and compiled loops are of that.

Every measurement is a process of its own. The first row: a session that has run a query of the JVM alone, then
``load().first()`` on a topic with one message. It includes the start of the Python processes in which Spark plans, the
lookup of the format and the first Python worker. The peer, registered by hand, makes its row from nothing;
``registered`` does the same with ours, and so leaves out the lookup. All run in turn.

The imports are measured in the process that plans a read, beside the same process without this project, in CPU
seconds. The compiled loops are loaded, from an empty and from a filled cache, and called once; beside them, the import
of numba.
"""

PLANNER = "import pyspark.sql.worker.plan_data_source_read"
OURS = "import pyspark_metaq, metaq_spark.source.stream_reader, metaq_spark.source.batch_reader"
LOOPS = "from metaq_spark.columns.compiling import compile_kernels; assert compile_kernels().folder"
NUMBA = "import numba"

TIMED = """
import time, {before}
start = time.{clock}()
{program}
print(time.{clock}() - start)
"""


def first_row(source: str, address: str) -> float:
    """Run in a process of its own: seconds to the first row."""
    with spark() as session:
        session.range(1000).selectExpr("sum(id)").collect()
        rows = SOURCES[source](session, address)
        start = time.perf_counter()
        assert rows().first() is not None
        return time.perf_counter() - start


def trivial(session: SparkSession, address: str) -> Callable[[], DataFrame]:
    session.dataSource.register(Trivial)
    return lambda: session.read.format("trivial").option("rows", 1).load()


def metaq(session: SparkSession, address: str) -> Callable[[], DataFrame]:
    return lambda: session.read.format("metaq").option("brokers", address).option("subscribe", TOPIC).load()


def registered(session: SparkSession, address: str) -> Callable[[], DataFrame]:
    from metaq_spark.datasource import MetaQDataSource

    session.dataSource.register(MetaQDataSource)
    return metaq(session, address)


SOURCES: Mapping[str, Callable[[SparkSession, str], Callable[[], DataFrame]]] = {
    "trivial": trivial,
    "metaq": metaq,
    "registered": registered,
}


def seconds_of(command: Sequence[str], **variables: str) -> float:
    """Return the number in the last line that a process prints."""
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=True,
    )
    return float(done.stdout.split()[-1])


def program(text: str, before: str = "sys", clock: str = "perf_counter") -> list[str]:
    return ["-c", TIMED.format(before=before, clock=clock, program=text)]


def first_rows(given: argparse.Namespace, report: Report) -> None:
    """Three sides, each in fresh processes."""
    with broker(1) as address, ExitStack() as stack:
        pool = SessionPool()
        stack.callback(pool.close)
        Producer(FixedDirectory([Address.parse(address)], pool), pool).put(TOPIC, Message(b"first"))
        sides = [
            lambda side=side: seconds_of([__file__, "start-up", "--side", side, "--brokers", address])
            for side in SOURCES
        ]
        peer, ours, known = alternating(sides, given.runs, unmeasured=0)
    for name, value in (("", ours), (", registered by hand", known)):
        figure = f"first row of a fresh query in a fresh session{name}"
        report.add(Figure(figure, "s", value, peer, "trivial source", better="less"))


def imports(given: argparse.Namespace, report: Report) -> None:
    sides = [program(f"{PLANNER}\n{OURS}", clock="process_time"), program(PLANNER, clock="process_time")]
    ours, peer = alternating([partial(seconds_of, side) for side in sides], given.runs, unmeasured=0)
    report.add(Figure("imports of the process that plans", "CPU s", ours, peer, "without ours", better="less"))


def loops(given: argparse.Namespace, report: Report) -> None:
    """Cold and warm in one folder, which is a new one for each run."""
    cold: list[float] = []
    warm: list[float] = []
    peer: list[float] = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
            for taken in (cold, warm):
                taken.append(seconds_of(program(LOOPS, "pyarrow, numpy"), NUMBA_CACHE_DIR=folder))
        peer.append(seconds_of(program(NUMBA, "pyarrow, numpy")))
    numba_s = statistics.median(peer)
    for name, values in (("an empty", cold), ("a filled", warm)):
        figure = f"compiled loops ready, from {name} cache"
        report.add(Figure(figure, "s", statistics.median(values), numba_s, "import numba", better="less"))


def main_start_up(words: Sequence[str] | None = None) -> None:
    parser = arguments(ABOUT_START_UP, runs=3)
    parser.add_argument("--side", choices=SOURCES, help=argparse.SUPPRESS)
    parser.add_argument("--brokers", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.side is not None:
        print(first_row(given.side, given.brokers))
        return
    with Report("Start-up", given.json) as report:
        imports(given, report)
        loops(given, report)
        first_rows(given, report)


PARTS: Final[Mapping[str, Callable[[Sequence[str]], int | None]]] = {
    "latency": main_latency,
    "start-up": main_start_up,
}

if __name__ == "__main__":
    sys.exit(run_part(PARTS))
