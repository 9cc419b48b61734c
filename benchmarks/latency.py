"""How long a message takes from its producer to a row in a sink, one message at a time.

    python benchmarks/latency.py [--messages 20] [--runs 5] [--json FILE]

A producer puts a message with its own clock in it; a streaming query with ``format("metaq")`` as its source, in
micro-batches as fast as they can, hands it to a sink in Python, which looks at the clock of the same machine and tells
the producer by datagram. The next message goes a random part of a poll later, so that each meets another moment of the
query. The put waits for its acknowledgement, so the broker's fsync is part of it.

The peer is the same query with the trivial source ``tail`` and nothing behind it but a file, to which each message is
appended. Both run in turn, in blocks of ``--messages``, whose first few do not count; p50 and p99 are over all blocks.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from figures import Figure, Report, arguments
from pyspark.sql import DataFrame, SparkSession
from spark_bench import broker, importable_by_workers, spark
from trivial import ARRIVAL, PAYLOAD_BYTES, Arrivals, Tail

from metaq.backends.metaq.pool import SessionPool
from metaq.client.producer import Producer
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address, Message

WARM_UP_MESSAGES = 3
PAUSE_S_MAX = 0.1
DEADLINE_S = 60.0
TOPIC = "pings"

Send = Callable[[bytes], object]


class Listener:
    """Hears from the sink when rows arrive."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(DEADLINE_S)
        self.port: int = self._socket.getsockname()[1]

    def latency_ms(self, sent_ns: int) -> float:
        """Wait for the row that was sent then; rows of before are passed over."""
        while True:
            told_ns, arrived_ns = ARRIVAL.unpack(self._socket.recv(ARRIVAL.size))
            if told_ns == sent_ns:
                return float(arrived_ns - sent_ns) / 1e6

    def close(self) -> None:
        self._socket.close()


class Side:
    """A source, and how to give it a message; collects what each message took."""

    def __init__(self, rows: Callable[[], DataFrame], send: Send, listener: Listener, pauses: random.Random) -> None:
        self._rows, self._send, self._listener, self._pauses = rows, send, listener, pauses
        self.latencies_ms: list[float] = []

    def block(self, messages: int) -> None:
        """A new query for so many messages and a few before them."""
        with self._query():
            taken = [self._ping() for _ in range(WARM_UP_MESSAGES + messages)]
        self.latencies_ms += taken[WARM_UP_MESSAGES:]

    @contextmanager
    def _query(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
            writer = self._rows().writeStream.format("arrivals").option("port", self._listener.port)
            query = writer.option("checkpointLocation", str(Path(folder) / "checkpoint")).start()
            try:
                query.processAllAvailable()  # from here on, everything is new
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
    producer.put(TOPIC, Message(bytes(PAYLOAD_BYTES)))

    def rows() -> DataFrame:
        reader = session.readStream.format("metaq").option("brokers", address).option("subscribe", TOPIC)
        return reader.option("startingOffsets", "latest").option("columns", "value").load()

    return rows, lambda payload: producer.put(TOPIC, Message(payload))


def tail_side(session: SparkSession, folder: Path) -> tuple[Callable[[], DataFrame], Send]:
    path = folder / "pings"
    path.touch()

    def send(payload: bytes) -> None:
        with path.open("ab") as file:
            file.write(payload)

    return lambda: session.readStream.format("tail").option("path", str(path)).load(), send


def measure(given: argparse.Namespace, stack: ExitStack) -> tuple[list[float], list[float]]:
    """The milliseconds of every message that counts: ours, the peer's."""
    address = stack.enter_context(broker(1))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-bench-")))
    session = stack.enter_context(spark())
    for source in (Tail, Arrivals):
        session.dataSource.register(source)
    listener, pauses = Listener(), random.Random(7)
    stack.callback(listener.close)
    ours = Side(*metaq_side(session, address, stack), listener, pauses)
    peer = Side(*tail_side(session, folder), listener, pauses)
    for side in (ours, peer):  # Python workers, compiled Java code
        side.block(given.messages)
        side.latencies_ms.clear()
    for _ in range(given.runs):
        for side in (ours, peer):
            side.block(given.messages)
    return ours.latencies_ms, peer.latencies_ms


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--messages", type=int, default=20, help="measured messages of a block (default 20)")
    given = parser.parse_args()
    given.messages = max(2, round(given.messages * given.scale))
    importable_by_workers()
    with ExitStack() as stack:
        report = stack.enter_context(Report("From put to row", given.json))
        ours, peer = measure(given, stack)
        for percent in (50, 99):
            name, ours_ms, peer_ms = f"put to row, p{percent}", percentile(ours, percent), percentile(peer, percent)
            report.add(Figure(name, "ms", ours_ms, peer_ms, "a tailed file", better="less"))


if __name__ == "__main__":
    main()
