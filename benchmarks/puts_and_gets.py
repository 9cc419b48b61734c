"""Measures one broker process over connections without Spark, and how fast the client reads.

python benchmarks/puts_and_gets.py broker [--runs 5] [--scale 1] [--json FILE] [--folder DIR] python
benchmarks/puts_and_gets.py client [--runs 3] [--scale 1] [--json FILE] [--folder DIR]
"""

from __future__ import annotations

import os
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from bare_peer import bare_peer, send_file, take_messages
from figures import Figure, Report, alternating, arguments, run_part
from machine import pages_given_back
from stage import started

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.session import Session
from metaq.client.consumer import Run, fetch, read_range
from metaq.formats.checksum import checksum
from metaq.formats.frames import HEADER_BYTES, encode_frame
from metaq.model import Address, Buffer, OffsetRange
from metaq.protocols.text.commands import Get, Put, PutBatch
from metaq.protocols.text.encode import encode

# ---- broker

ABOUT_BROKER: Final = """\
What connections get out of the broker alone: text puts, batched puts, durable round trips, gets.

The broker runs as its own process in group-commit mode (every acknowledgement comes after fsync). Each figure stands
beside a peer from the same run that does the same system calls on sockets and files and nothing else
(``bare_peer.bare_peer``). With two cores or more, server and client each have one. Runs of the two take turns, medians
count. ``--scale`` is the length of a run in seconds.

While puts are measured, pages of the files that are on the disk already are given back to the system, for both sides:
on a virtual machine the first use of a page of memory can cost more than all that is measured here.
"""

TOPIC = "bench"
BODY_BYTES = 100
BLOCK_BYTES = 1 << 20
GET_BYTES = 1 << 20
GET_ROUNDS, GET_SHARE = 3, 0.5
"""Gets are measured in more and shorter rounds: between two cores, their speed varies."""
GETS_AHEAD, FEW_GETS_AHEAD = 16, 4
"""Gets in flight: enough that neither side waits for the other; few, if waiting counts."""
OPAQUE = 1_000_000
REPLY = b"result 200 35 1000000\r\n5468928979710803309 0 1234567890"
"""The bare peer's reply to a put, as long as the broker's."""
SEND_BYTES = 1 << 18
"""Requests that the client sends with one system call."""
BARE_PUT = "bare write and fsync"
TEXT_PUTS_STATED = 300_000
"""The number of text puts a second on one connection that the broker should reach."""

Server = tuple[str, int]
Answered = Callable[[bytearray, int], float]


class Lane:
    """One connection that sends ``request`` repeatedly, with at most ``ahead`` unanswered."""

    def __init__(self, server: Server, request: bytes, ahead: int) -> None:
        self.connection = _connect(server)
        self.connection.setblocking(False)
        self.per_send = max(1, min(ahead // 2, SEND_BYTES // len(request)))
        self.ahead, self.sent, self.done, self.position = ahead, 0, 0.0, 0
        self._out = memoryview(request * self.per_send)

    def wants(self, sending: bool) -> int:
        """Return the events to wait for."""
        may_send = (sending or self.position) and self.sent - self.done <= self.ahead - self.per_send
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if may_send else 0)

    def send(self) -> None:
        """Send as much as the socket accepts."""
        self.position += self.connection.send(self._out[self.position :])
        if self.position == len(self._out):
            self.position, self.sent = 0, self.sent + self.per_send

    @property
    def finished(self) -> bool:
        """Whether all requests are answered."""
        return not self.position and self.done + 1e-6 >= self.sent


def pipelined(
    servers: Sequence[Server], requests: Sequence[bytes], answered: Answered, seconds: float, ahead: int
) -> float:
    """Send each server its request repeatedly; return answered requests per second, in total.

    ``answered`` returns how many replies the first bytes of a buffer are; they are not decoded, so that the client is
    not measured.
    """
    lanes = [Lane(server, request, ahead) for server, request in zip(servers, requests, strict=True)]
    received, started = bytearray(1 << 20), time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for lane in lanes:
            selector.register(lane.connection, selectors.EVENT_READ, lane)
        while (sending := time.perf_counter() < started + seconds) or not all(lane.finished for lane in lanes):
            for lane in lanes:
                selector.modify(lane.connection, lane.wants(sending), lane)
            for key, events in selector.select(30):
                if events & selectors.EVENT_READ:
                    key.data.done += answered(received, key.data.connection.recv_into(received))
                if events & selectors.EVENT_WRITE:
                    key.data.send()
    elapsed = time.perf_counter() - started
    for lane in lanes:
        lane.connection.close()
    return sum(lane.sent for lane in lanes) / elapsed


def round_trips(server: Server, request: bytes, seconds: float) -> list[float]:
    """Send one request at a time, two at least; return the time of each round trip in milliseconds."""
    connection = _connect(server)
    times, stop_at, received = list[float](), time.perf_counter() + seconds, bytearray(4096)
    while (started := time.perf_counter()) < stop_at or len(times) < 2:
        connection.sendall(request)
        while not count_replies(received, connection.recv_into(received)):
            pass
        times.append(1000 * (time.perf_counter() - started))
    connection.close()
    return times


def count_replies(received: bytearray, size: int) -> int:
    """Return how many replies to puts are in the first ``size`` bytes: each has one line end."""
    assert size, "the connection was closed"
    assert received.find(b" 500 ", 0, size) < 0, received[:200]
    return received.count(b"\n", 0, size)


def put_request() -> bytes:
    """Return a put as the Java client sends it."""
    body = Random(1).randbytes(BODY_BYTES)
    return encode(Put(TOPIC, 0, body, 0, OPAQUE, checksum(body)))


def batch_request(body_bytes: int, partition: int = 0) -> bytes:
    """Return a batched put of about ``BLOCK_BYTES``."""
    count, random = BLOCK_BYTES // (20 + body_bytes), Random(body_bytes)
    block = b"".join(encode_frame(-1, 0, random.randbytes(body_bytes)) for _ in range(count))
    return encode(PutBatch(TOPIC, partition, block, count, OPAQUE))


@contextmanager
def pinned_broker(folder: Path, cpu: int | None) -> Iterator[tuple[str, int]]:
    """Run a development broker on ``folder``; yield its address."""
    options = ("--port", "0", "--partitions", "2", "--log-level", "warning")
    with started("dev", str(folder), *options) as running:
        if cpu is not None:
            for thread in os.listdir(f"/proc/{running.pid}/task"):
                os.sched_setaffinity(int(thread), {cpu})
        yield running.address.host, running.address.port


class Bench:
    """One run of everything on fresh folders. Every measurement takes ``seconds``."""

    def __init__(self, report: Report, folder: Path, runs: int, seconds: float) -> None:
        self.report, self.folder, self.runs, self.seconds = report, folder, runs, seconds
        cpus = sorted(os.sched_getaffinity(0))
        self.server_cpu = cpus[0] if len(cpus) > 1 else None
        if self.server_cpu is not None:
            os.sched_setaffinity(0, set(cpus[1:]))

    def run(self) -> None:
        with pinned_broker(self.folder / "broker", self.server_cpu) as broker:
            with pages_given_back(self.folder):
                self._text_puts(broker)
                for body_bytes in (100, 1000):
                    self._batched_puts(broker, f"broker, batched put, {body_bytes} B", [batch_request(body_bytes)], 0.5)
                two = [batch_request(1000, partition) for partition in (0, 1)]
                self._batched_puts(broker, "broker, batched put, 1000 B, two connections, two partitions", two)
            self._round_trips(broker)
            self._gets(broker)

    def _alternating(self, ours: Callable[[], float], peer: Callable[[], float]) -> tuple[float, float]:
        ours_median, peer_median = alternating([ours, peer], self.runs)
        return ours_median, peer_median

    def _puts(self, broker: Server, requests: list[bytes], ahead: int) -> tuple[float, float]:
        """Return requests per second of the broker and of its peer, which is a process for each connection."""

        def bare() -> float:
            with ExitStack() as stack:
                peers = [stack.enter_context(self._bare_puts(request, n)) for n, request in enumerate(requests)]
                return pipelined(peers, requests, count_replies, self.seconds, ahead)

        servers = [broker] * len(requests)
        return self._alternating(lambda: pipelined(servers, requests, count_replies, self.seconds, ahead), bare)

    @contextmanager
    def _bare_puts(self, request: bytes, number: int = 0) -> Iterator[Server]:
        file = self.folder / f"bare-{number}"
        with bare_peer(take_messages, file, len(request), REPLY, cpu=self.server_cpu) as peer:
            yield peer
        file.unlink()

    def _text_puts(self, broker: Server) -> None:
        ours, bare = self._puts(broker, [put_request()], 8192)
        self.report.add(Figure("broker, text put, 100 B, pipelined", "put/s", ours, bare, BARE_PUT))
        name, stated = "broker, text put, 100 B, pipelined, as stated", TEXT_PUTS_STATED / 1000
        self.report.add(Figure(name, "k put/s", ours / 1000, stated, "stated", aim=1.0))

    def _batched_puts(self, broker: Server, name: str, requests: list[bytes], aim: float | None = None) -> None:
        ours, bare = (rate * len(requests[0]) / 1e6 for rate in self._puts(broker, requests, 4))
        self.report.add(Figure(name, "MB/s", ours, bare, BARE_PUT, aim=aim))

    def _round_trips(self, broker: Server) -> None:
        request = put_request()
        ours: list[float] = []
        bare: list[float] = []
        for _ in range(self.runs):
            ours += round_trips(broker, request, self.seconds / 2)
            with self._bare_puts(request) as peer:
                bare += round_trips(peer, request, self.seconds / 2)
        for percent in (50, 99):
            measured, floor = (statistics.quantiles(times, n=100)[percent - 1] for times in (ours, bare))
            name = f"broker, durable put, one at a time, p{percent}"
            self.report.add(Figure(name, "ms", measured, floor, BARE_PUT, better="less"))

    def _gets(self, broker: Server) -> None:
        request = encode(Get(TOPIC, "g", 0, 0, GET_BYTES, OPAQUE))
        head, seconds = len(b"value %d %d\r\n" % (GET_BYTES, OPAQUE)), GET_SHARE * self.seconds
        # The peer sends the same pages: the size of the file's pieces in the page cache matters to sendfile.
        segment = min((self.folder / "broker").glob(f"{TOPIC}-0/*.meta"))
        sent = (len(request), head, GET_BYTES, GET_BYTES)

        def replies(_received: bytearray, size: int) -> float:
            return size / (head + GET_BYTES)

        def ours(ahead: int = GETS_AHEAD) -> float:
            return pipelined([broker], [request], replies, seconds, ahead)

        def bare(ahead: int = GETS_AHEAD, *, paced: bool = False) -> float:
            with bare_peer(send_file, segment, *sent, cpu=self.server_cpu, paced=paced) as peer:
                return pipelined([peer], [request], replies, seconds, ahead)

        few = FEW_GETS_AHEAD
        sides = (ours, bare, partial(bare, paced=True), partial(ours, few), partial(bare, few))
        rates = (rate * GET_BYTES / 1e6 for rate in alternating(sides, GET_ROUNDS * self.runs))
        answered, unpaced, paced, few_answered, few_unpaced = rates
        self.report.add(Figure("broker, get, 1 MiB", "MB/s", answered, unpaced, "bare sendfile", aim=0.8))
        name = f"broker, get, 1 MiB, {few} under way"
        self.report.add(Figure(name, "MB/s", few_answered, few_unpaced, "bare sendfile"))
        name = "bare sendfile, 1 MiB, not paced"
        self.report.add(Figure(name, "MB/s", unpaced, paced, "with the system's congestion control"))


def _connect(server: Server) -> socket.socket:
    connection = socket.create_connection(server, 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def main_broker(words: Sequence[str] | None = None) -> None:
    parser = arguments(ABOUT_BROKER)
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    options = parser.parse_args(words)
    with (
        tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=options.folder) as folder,
        Report("The broker alone", options.json) as report,
    ):
        Bench(report, Path(folder), options.runs, options.scale).run()


# ---- client

ABOUT_CLIENT: Final = """\
How fast the client reads: ``read_range`` and single calls, beside a bare socket that reads the same bytes.

All read the same partition of one broker process, 256 MB. The bare socket has the same number of gets under way,
receives into one buffer that it uses again, and looks at nothing; it is the ceiling. "frames of known size" replaces
the walk over the frame headers by a division: that is what a compiled walk costs, or nearly. All take turns; medians.
MB/s is elapsed time; CPU time is of this process alone, which other work on the machine disturbs less. With two
cores or more, broker and client each have one.
"""

FETCH_BYTES = 1 << 20
MEGABYTES = 256
RUNS = 3


def bare_socket(address: Address, end: int, under_way: int) -> int:
    """Read ``end`` bytes of the partition in replies of ``FETCH_BYTES`` and drop them; return the number of bytes."""
    connection = socket.create_connection((address.host, address.port), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(FETCH_BYTES))
    requests = [
        encode(Get(TOPIC, "g", 0, at, FETCH_BYTES, OPAQUE)) for at in range(0, end - FETCH_BYTES + 1, FETCH_BYTES)
    ]
    reply_bytes = len(b"value %d %d\r\n" % (FETCH_BYTES, OPAQUE)) + FETCH_BYTES
    connection.sendall(b"".join(requests[:under_way]))
    for number in range(len(requests)):
        missing = reply_bytes
        while missing:
            missing -= connection.recv_into(buffer[: min(missing, FETCH_BYTES)])
        if number + under_way < len(requests):
            connection.sendall(requests[number + under_way])
    connection.close()
    return len(requests) * FETCH_BYTES


def one_by_one(session: Session, end: int) -> int:
    """Read the partition with one ``fetch`` after the other."""
    offset = 0
    while offset < end and isinstance(run := fetch(session, TOPIC, 0, offset, FETCH_BYTES), Run):
        offset = run.end
    return offset


def ranged(session: Session, end: int, measure: Callable[[Buffer], int] | None = None) -> int:
    """Read the partition with ``read_range``."""
    runs = (
        read_range(session, TOPIC, 0, OffsetRange(0, end), FETCH_BYTES)
        if measure is None
        else read_range(session, TOPIC, 0, OffsetRange(0, end), FETCH_BYTES, measure=measure)
    )
    return sum(len(run.data) for run in runs)


def known_size(frame_bytes: int, run: Buffer) -> int:
    """``whole_bytes`` where every frame has ``frame_bytes``."""
    total = memoryview(run).nbytes
    return total - total % frame_bytes


def filled(address: Address, body_bytes: int, byte_count: int) -> tuple[Session, int]:
    """Fill the partition with equal messages; return a session, and the readable end."""
    session = Session.connect(address)
    frame = encode_frame(0, 0, b"x" * body_bytes)
    count = FETCH_BYTES // len(frame)
    writer = BatchWriter(session, TOPIC)
    for _ in range(byte_count // (count * len(frame))):
        writer.write(0, frame * count, count)
    receipts = writer.flush()
    return session, receipts[-1].offset + count * len(frame)


class Cost(NamedTuple):
    """The cost of reading: elapsed time and CPU time of this process, both in milliseconds per GB."""

    clock_ms: float
    cpu_ms: float


def costs(ways: dict[str, Callable[[], int]], runs: int) -> dict[str, Cost]:
    """Return each way's median costs over ``runs`` rounds, after one that does not count."""
    taken: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(runs + 1):
        for name, read in ways.items():
            clock, cpu = time.perf_counter(), time.process_time()
            per_ms = 1e12 / read()
            taken[name].append(Cost((time.perf_counter() - clock) * per_ms, (time.process_time() - cpu) * per_ms))
    return {name: Cost(*map(statistics.median, zip(*each[1:], strict=True))) for name, each in taken.items()}


def reading(report: Report, folder: Path, body_bytes: int, byte_count: int, runs: int, cpu: int | None) -> None:
    """Add two figures for each way, elapsed and CPU time, for messages of ``body_bytes``."""
    with pinned_broker(folder, cpu) as (host, port):
        address = Address(host, port)
        session, end = filled(address, body_bytes, byte_count)
        known = partial(known_size, HEADER_BYTES + body_bytes)
        bare = {f"bare socket, {ahead} ahead": partial(bare_socket, address, end, ahead) for ahead in (1, 2)}
        ways: dict[str, Callable[[], int]] = {
            "fetch, one by one": partial(one_by_one, session, end),
            "read_range": partial(ranged, session, end),
            "read_range, frames of known size": partial(ranged, session, end, known),
        }
        measured = costs(bare | ways, runs)
        session.close()
    for name in ways:
        peer = f"bare socket, {1 if name.startswith('fetch') else 2} ahead"
        ours, least, full = measured[name], measured[peer], f"client: {name}, {body_bytes} B"
        report.add(Figure(full, "MB/s", 1e6 / ours.clock_ms, 1e6 / least.clock_ms, peer))
        report.add(Figure(f"{full}, CPU", "CPU ms/GB", ours.cpu_ms, least.cpu_ms, peer, "less"))


def main_client(words: Sequence[str] | None = None) -> None:
    parser = arguments(ABOUT_CLIENT, RUNS)
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    given = parser.parse_args(words)
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:
        os.sched_setaffinity(0, set(cpus[1:]))
    size = max(4 * FETCH_BYTES, int(MEGABYTES * 10**6 * given.scale))
    with Report("The client alone", given.json) as report:
        for body_bytes in (1000, 100):
            with tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=given.folder) as folder:
                reading(report, Path(folder), body_bytes, size, given.runs, cpus[0] if len(cpus) > 1 else None)


PARTS: Final[Mapping[str, Callable[[Sequence[str]], int | None]]] = {
    "broker": main_broker,
    "client": main_client,
}

if __name__ == "__main__":
    sys.exit(run_part(PARTS))
