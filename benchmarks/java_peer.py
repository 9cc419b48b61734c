"""Compares this broker with a Java MetaQ broker: the same puts, gets, reads and writes, over a bare socket and through
Spark.

    python benchmarks/java_peer.py --java-broker HOST:PORT [--topic test] [--runs 5] [--scale 1] [--json FILE]

Without ``--java-broker`` there is nothing to compare with, and nothing is measured. The broker must accept the topic;
messages are added to it and stay there. This broker runs on this machine in group-commit mode. For a fair comparison,
run the Java broker on this machine, too, on the same disk, with ``unflushThreshold=0`` (then both acknowledge after
fsync), two partitions of the topic and ``maxTransferSize`` of 1 MiB.

Over a socket, both get the same bytes: puts as the Java client sends them, pipelined or one at a time, and gets of 1
MiB one after the other. Through Spark, both are read and written by this connector. To a Java broker it writes one
request per message, the only way there, and waits for each answer; hence the small number of messages.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from figures import Figure, Report, arguments, medians
from pyspark.sql import SparkSession
from spark_read import to_noop
from spark_write import frame_of, write
from stage import PARTITIONS, Case, running_broker, spark

from metaq.backends.metaq.pool import SessionPool
from metaq.client.producer import Producer
from metaq.discovery.fixed import FixedDirectory
from metaq.formats.checksum import checksum
from metaq.model import Address, Message, Partition, TopicPartition
from metaq.protocols.text.commands import Get, Put
from metaq.protocols.text.encode import encode

PUTS: Final = Case(100, 200_000)
"""Messages that are sent over a socket, and then read through Spark."""
WRITES: Final = Case(100, 4_000)
PUTS_MIN: Final = 20_000
"""Enough for a megabyte in each partition."""
ROUND_TRIPS: Final = 1000
GET_BYTES: Final = 1 << 20
GETS: Final = 400
AHEAD: Final = 8192
"""Puts in flight on a connection."""
OPAQUE: Final = 1_000_000
NOBODY: Final = "java_peer: nothing is measured without --java-broker HOST:PORT"


@dataclass(frozen=True)
class BenchTopic:
    address: Address
    topic: str
    partitions: tuple[Partition, ...]

    @classmethod
    def of(cls, address: Address, topic: str) -> BenchTopic:
        """Ask the broker, and put a message into each partition so that all of them have an end."""
        pool = SessionPool()
        with closing(pool):
            directory = FixedDirectory([address], pool)
            producer, found = Producer(directory, pool), tuple(sorted(directory.writable(topic)))
            for partition in found:
                producer.put(topic, Message(b"before the benchmark"), partition)
        return cls(address, topic, found)

    def ends(self) -> dict[str, int]:
        """Return each partition's readable end."""
        pool = SessionPool()
        with closing(pool):
            ends = FixedDirectory([self.address], pool).ends([self.topic])
        return {str(each): ends[TopicPartition(self.topic, each)].end for each in self.partitions}


def connect(place: BenchTopic) -> socket.socket:
    """Return a connection with a timeout of half a minute."""
    connection = socket.create_connection((place.address.host, place.address.port), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def put_all(place: BenchTopic, case: Case) -> None:
    """Put the messages with many in flight, to the partitions in turn in pieces of an eighth of the limit."""
    body = b"x" * case.payload_bytes
    requests = [encode(Put(place.topic, each.index, body, 0, OPAQUE, checksum(body))) for each in place.partitions]
    piece, sent, answered, received = AHEAD // 8, 0, 0, bytearray(1 << 18)
    with closing(connect(place)) as connection:
        while answered < case.rows:
            if sent < case.rows and sent - answered <= AHEAD - piece:
                count = min(piece, case.rows - sent)
                connection.sendall(requests[sent // piece % len(requests)] * count)
                sent += count
            answered += answers(received, connection.recv_into(received))


def answers(received: bytearray, size: int) -> int:
    """Return how many replies to puts end in the first ``size`` bytes: each has one line end."""
    assert size, "the broker closed the connection"
    assert received.find(b" 500 ", 0, size) < 0, f"a put was refused: {bytes(received[:200])!r}"
    return received.count(b"\r\n", 0, size)


def put_one_by_one(place: BenchTopic, count: int) -> float:
    """Return the median time of a put that waits for its answer, in milliseconds."""
    body, received, times = b"x" * PUTS.payload_bytes, bytearray(4096), []
    request = encode(Put(place.topic, place.partitions[0].index, body, 0, OPAQUE, checksum(body)))
    with closing(connect(place)) as connection:
        for _ in range(count):
            start = time.perf_counter()
            connection.sendall(request)
            while not answers(received, connection.recv_into(received)):
                pass
            times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def get_all(place: BenchTopic, offset: int, count: int) -> None:
    """Get the megabyte from ``offset`` on ``count`` times, one after the other, without decoding it."""
    request = encode(Get(place.topic, "bench", place.partitions[0].index, offset, GET_BYTES, OPAQUE))
    head = b"value %d %d\r\n" % (GET_BYTES, OPAQUE)
    buffer = memoryview(bytearray(GET_BYTES + len(head)))
    with closing(connect(place)) as connection:
        for _ in range(count):
            connection.sendall(request)
            missing = len(buffer)
            while missing:
                taken = connection.recv_into(buffer[len(buffer) - missing :])
                assert taken, "the broker closed the connection"
                missing -= taken
            assert buffer[: len(head)] == head, f"no megabyte: {bytes(buffer[:60])!r}"


@dataclass(frozen=True)
class Bench:
    """Makes the figures; ``ours`` and ``java`` are the same topic at both brokers."""

    report: Report
    ours: BenchTopic
    java: BenchTopic
    runs: int
    scale: float

    @property
    def places(self) -> tuple[BenchTopic, BenchTopic]:
        return self.ours, self.java

    def sockets(self) -> None:
        """Measure puts and gets over one connection."""
        puts, gets = self._scaled(PUTS, PUTS_MIN), max(10, int(GETS * self.scale))
        starts = [place.ends()[str(place.partitions[0])] for place in self.places]
        self._rate("put, pipelined, 100 B", "put/s", puts.rows, [partial(put_all, each, puts) for each in self.places])
        trips = max(20, int(ROUND_TRIPS * self.scale))
        rounds = [[put_one_by_one(place, trips) for place in self.places] for _ in range(self.runs)]
        ours, java = map(statistics.median, zip(*rounds, strict=True))
        self._add("put, one at a time, 100 B, median", "ms", ours, java, "less")
        megabytes = gets * GET_BYTES / 1e6
        actions = [partial(get_all, place, start, gets) for place, start in zip(self.places, starts, strict=True)]
        self._rate("get, 1 MiB, one at a time", "MB/s", megabytes, actions)

    def spark(self, session: SparkSession) -> None:
        """Measure a read of the same messages, and a write."""
        puts, writes = self._scaled(PUTS, PUTS_MIN), self._scaled(WRITES)
        frames = []
        for place in self.places:
            start = place.ends()
            put_all(place, puts)
            offsets = {
                "startingOffsets": json.dumps({place.topic: start}),
                "endingOffsets": json.dumps({place.topic: place.ends()}),
            }
            reader = session.read.format("metaq").options(brokers=str(place.address), subscribe=place.topic, **offsets)
            frames.append(reader.load())
        assert [frame.count() for frame in frames] == [puts.rows] * 2
        self._rate("read, 100 B", "M rows/s", puts.rows / 1e6, [partial(to_noop, frame) for frame in frames])
        rows = frame_of(session, writes)
        actions = [partial(write, rows, "metaq", brokers=str(each.address), topic=each.topic) for each in self.places]
        self._rate("write, 100 B", "rows/s", writes.rows, actions)

    def _scaled(self, case: Case, rows_min: int = 500) -> Case:
        return Case(case.payload_bytes, max(rows_min, int(case.rows * self.scale)))

    def _rate(self, name: str, unit: str, amount: float, actions: Sequence[Any]) -> None:
        ours, java = medians(actions, self.runs)
        self._add(name, unit, amount / ours, amount / java)

    def _add(self, name: str, unit: str, ours: float, java: float, better: Any = "more") -> None:
        self.report.add(Figure(f"java broker, {name}", unit, ours, java, "Java broker", better))


def options(given: Sequence[str] | None = None) -> Any:
    parser = arguments(__doc__)
    parser.add_argument("--java-broker", metavar="HOST:PORT", help="a MetaQ broker in Java")
    parser.add_argument("--topic", default="test", help="a topic that it accepts (default: test)")
    return parser.parse_args(given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    given = options(arguments)
    if not given.java_broker:
        print(NOBODY)
        return 0
    java = BenchTopic.of(Address.parse(given.java_broker), given.topic)
    with (
        tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder,
        running_broker(Path(folder), PARTITIONS) as broker,
        spark() as session,
        Report("Beside a Java broker", given.json) as report,
    ):
        bench = Bench(report, BenchTopic.of(broker.address, given.topic), java, given.runs, given.scale)
        bench.sockets()
        bench.spark(session)
    return 0


if __name__ == "__main__":
    sys.exit(main())
