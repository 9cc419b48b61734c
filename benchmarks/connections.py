"""Measures the memory of a broker with many idle connections.

    python benchmarks/connections.py idle-memory [--scale 1] [--json FILE] [--partitions 1000] [--connections 10000]
                                                 [--mib-max 512]
"""

from __future__ import annotations

import re
import resource
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from figures import Figure, Report, arguments, run_part
from stage import RunningBroker, started

from metaq.model import Address
from metaq.protocols.text.commands import Put
from metaq.protocols.text.encode import encode

if TYPE_CHECKING:
    pass

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
    """Return the resident memory of a process."""
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) / 1024


@contextmanager
def ready_for(folder: Path, connections: int, partitions: int) -> Iterator[RunningBroker]:
    """Run a broker that accepts that many connections, on a free port."""
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
    """Return how many connections the broker counts."""
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
    """Add a figure after each step; return the last one's MiB."""
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


PARTS: Final[Mapping[str, Callable[[Sequence[str]], int | None]]] = {
    "idle-memory": main_idle_memory,
}

if __name__ == "__main__":
    sys.exit(run_part(PARTS))
