"""A broker with many connections: its memory while they are idle, and how long a put waits while they are busy.

python benchmarks/connections.py idle-memory [--scale 1] [--json FILE] [--partitions 1000] [--connections 10000]
                                             [--mib-max 512]
python benchmarks/connections.py fairness [--scale 1] [--json FILE] [--connections 10,50,200,1000] [--seconds 5]
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import re
import resource
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from figures import Figure, Report, arguments, run_part
from stage import RunningBroker, started

from metaq.formats.checksum import checksum
from metaq.model import Address
from metaq.protocols.text.commands import Put
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder
from metaq.protocols.text.encode import encode

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

# ---- idle-memory

ABOUT_IDLE_MEMORY: Final = """\
Memory of a broker that serves many and has little to do: partitions that were written to, connections that are idle.

Starts a real broker, puts a message to every partition, opens the connections (each has asked once), waits until all
of them have been answered, and takes the resident memory (VmRSS) of the broker's process after each step. The last
figure stands beside the most that it may be; the exit status is 1 if it is more. ``--runs`` changes nothing: memory is
the same every time.
"""

SPARE_FILES = 200
"""Descriptors that this process needs beside one per connection."""

IN_FLIGHT = 200
DEADLINE_S = 120.0


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) / 1024


@contextmanager
def ready_for(folder: Path, connections: int, partitions: int) -> Iterator[RunningBroker]:
    """A broker that accepts as many, on a free port."""
    limits = f"maxConnections={connections + 10}\nmaxPartitions={partitions}\ndiskFreeMinBytes=0\n"
    (folder / "server.ini").write_text(
        f"[system]\nbrokerId=0\nnumPartitions={partitions}\nserverPort=0\nunflushThreshold=0\nunflushInterval=1000\n"
        f"maxSegmentSize=1024*1024*1024\nmaxTransferSize=1024*1024\ndataPath={folder}\n{limits}[topic=idle]\n"
    )
    with started("start", "-f", str(folder / "server.ini"), "--log-level", "error") as running:
        yield running


def fill(address: Address, partitions: int) -> None:
    """Put one message to every partition."""
    with socket.create_connection((address.host, address.port), DEADLINE_S) as client:
        client.sendall(b"".join(encode(Put("idle", index, bytes(100), 0, index, None)) for index in range(partitions)))
        expected, received = partitions, b""
        while received.count(b"result 200 ") < expected:
            chunk = client.recv(1 << 16)
            if not chunk or b"result 500 " in received:
                raise SystemExit(f"puts were refused: {received[-300:]!r}")
            received += chunk


def connect(
    address: Address, count: int, request: Callable[[int], bytes], is_answer: Callable[[bytes], bool]
) -> list[socket.socket]:
    """Open connections and send ``request(number)`` over each; return when all have answered."""
    clients: list[socket.socket] = []
    end = time.monotonic() + DEADLINE_S
    with selectors.DefaultSelector() as waiting:
        while len(clients) < count or waiting.get_map():
            if time.monotonic() > end:
                raise SystemExit(f"{len(waiting.get_map())} of {len(clients)} connections were not answered")
            while len(clients) < count and len(waiting.get_map()) < IN_FLIGHT:
                client = socket.create_connection((address.host, address.port), DEADLINE_S)
                client.sendall(request(len(clients)))
                waiting.register(client, selectors.EVENT_READ)
                clients.append(client)
            for key, _ in waiting.select(1.0):
                waiting.unregister(key.fileobj)
                if not is_answer(key.fileobj.recv(4096)):  # type: ignore[union-attr]
                    raise SystemExit("a connection was closed instead of answered")
    return clients


def connections_counted(client: socket.socket) -> int:
    """How many connections the broker itself counts."""
    client.sendall(b"stats\r\n")
    received = b""
    while not received.endswith(b"END\r\n"):
        received += client.recv(1 << 16)
    (counted,) = re.findall(rb"curr_connections (\d+)", received)
    return int(counted)


def allow_files(count: int) -> None:
    """Raise this process's limit of open files, if it is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise SystemExit(f"this system allows {hard} open files, {count} are needed (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def measure_idle(report: Report, folder: Path, partitions: int, connections: int, mib_max: float) -> float:
    """Add a figure after each step; the last one's MiB."""
    with ready_for(folder, connections, partitions) as broker:
        report.add(Figure("broker's memory: started", "MiB", rss_mib(broker.pid), better="less"))
        fill(broker.address, partitions)
        report.add(Figure(f"broker's memory: {partitions} partitions", "MiB", rss_mib(broker.pid), better="less"))
        clients = connect(
            broker.address, connections, lambda _: b"version 1\r\n", lambda reply: reply.startswith(b"result 200")
        )
        if connections_counted(clients[0]) != len(clients):
            raise SystemExit("the broker has closed connections")
        measured = rss_mib(broker.pid)
        name = f"broker's memory: {partitions} partitions and {len(clients)} idle connections"
        report.add(Figure(name, "MiB", measured, mib_max, "limit", "less", 1.0))
        for client in clients:
            client.close()
        return measured


def main_idle_memory(given: Sequence[str] | None = None) -> int:
    """Run the measurement; return the exit status."""
    parser = arguments(ABOUT_IDLE_MEMORY)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--mib-max", type=float, default=512.0)
    options = parser.parse_args(given)
    connections, partitions = (max(1, int(n * options.scale)) for n in (options.connections, options.partitions))
    allow_files(connections + SPARE_FILES)
    with (
        tempfile.TemporaryDirectory(prefix="metaq-idle-") as folder,
        Report("Memory of a broker with little to do", options.json) as report,
    ):
        measured = measure_idle(report, Path(folder), partitions, connections, options.mib_max)
    return int(measured > options.mib_max)


# ---- fairness

ABOUT_FAIRNESS: Final = """\
How long an honest put waits beside connections that send as fast as they can.

One client puts a message of 100 bytes, waits for the answer, which comes after fsync, and puts the next. The others
keep 2,000 puts of 100 bytes each under way, in two processes on the same machine; in a second pass without a checksum,
as old clients put, which costs the broker more. The median of the honest client stands beside a limit: 0.1 s with up to
50 connections, 0.3 s with more. What all others put in a second meanwhile says what fairness costs. ``--runs`` changes
nothing, ``--scale`` multiplies the seconds.
"""

BODY = b"x" * 100
WINDOW = 2000
PROCESSES = 2
LEAD_S = 1.0
"""The others send for so long before the honest client begins, and after it."""

KINDS = {"with a checksum": checksum(BODY), "without a checksum": None}


async def pipeline(address: Address, put: bytes, end: float) -> int:
    """One busy connection; returns how many of its puts were answered."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(put * WINDOW)
    answered = 0
    with contextlib.closing(writer):
        while time.monotonic() < end and (data := await reader.read(1 << 16)):
            now = data.count(b"result 200 ")
            answered += now
            writer.write(put * now)
            await writer.drain()
    return answered


def send_busily(
    address: Address, put: bytes, connections: int, lasts_s: float, ready: Event, answered: Queue[int]
) -> None:
    """A process with a part of the busy connections."""

    async def run() -> int:
        end = time.monotonic() + lasts_s
        ready.set()
        return sum(await asyncio.gather(*(pipeline(address, put, end) for _ in range(connections))))

    answered.put(asyncio.run(run()))


def put_honestly(address: Address, put: bytes, lasts_s: float) -> list[float]:
    """Milliseconds of each put of a client that waits for every answer."""
    took_ms: list[float] = []
    decoder = ReplyDecoder()
    with socket.create_connection((address.host, address.port), DEADLINE_S) as connection:
        end = time.monotonic() + lasts_s
        while time.monotonic() < end:
            start = time.perf_counter()
            connection.sendall(put)
            while decoder.next_reply() is NEED_DATA:
                if not (chunk := connection.recv(4096)):
                    raise SystemExit("the broker has closed the honest connection")
                decoder.receive_data(chunk)
            took_ms.append((time.perf_counter() - start) * 1000)
    return took_ms


def measure_fairness(report: Report, address: Address, kind: str, connections: int, lasts_s: float) -> None:
    """Add the figures of one number of connections."""
    put = {topic: encode(Put(topic, 0, BODY, 0, 1, KINDS[kind])) for topic in ("busy", "honest")}
    context = multiprocessing.get_context("spawn")
    answered: Queue[int] = context.Queue()
    readies = [context.Event() for _ in range(PROCESSES)]
    busy_s = LEAD_S + lasts_s + LEAD_S
    workers = [
        context.Process(
            target=send_busily, args=(address, put["busy"], connections // PROCESSES, busy_s, ready, answered)
        )
        for ready in readies
    ]
    for worker in workers:
        worker.start()
    for ready in readies:
        ready.wait(DEADLINE_S)
    time.sleep(LEAD_S)
    took_ms = put_honestly(address, put["honest"], lasts_s)
    puts = sum(answered.get(timeout=DEADLINE_S) for _ in workers)
    for worker in workers:
        worker.join(DEADLINE_S)
    beside = f"beside {connections} busy connections {kind}"
    limit_ms = 100.0 if connections <= 50 else 300.0
    report.add(Figure(f"honest put {beside}", "ms", statistics.median(took_ms), limit_ms, "limit", "less", 1.0))
    report.add(Figure(f"slowest honest put {beside}", "ms", max(took_ms), better="less"))
    report.add(Figure(f"puts of the others, {connections} {kind}", "puts/s", puts / busy_s))


def main_fairness(given: Sequence[str] | None = None) -> int:
    """Run the measurements; return the exit status: 1 if a median is over its limit."""
    parser = arguments(ABOUT_FAIRNESS)
    parser.add_argument("--connections", default="10,50,200,1000", help="numbers of busy connections, with commas")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the honest client, each time")
    options = parser.parse_args(given)
    with (
        tempfile.TemporaryDirectory(prefix="metaq-fairness-") as folder,
        started("dev", str(Path(folder) / "data"), "--port", "0", "--log-level", "error") as broker,
        Report("An honest put beside busy connections", options.json) as report,
    ):
        for kind in KINDS:
            for connections in map(int, options.connections.split(",")):
                measure_fairness(report, broker.address, kind, connections, options.seconds * options.scale)
    return int(any(figure.met is False for figure in report.figures))


PARTS: Final[Mapping[str, Callable[[Sequence[str]], int | None]]] = {
    "idle-memory": main_idle_memory,
    "fairness": main_fairness,
}

if __name__ == "__main__":
    sys.exit(run_part(PARTS))
