"""Memory of a broker that serves many and has little to do: partitions that were written to, connections that are idle.

    python benchmarks/idle_memory.py [--partitions 1000] [--connections 10000] [--mib-max 512]

Starts a real broker, puts a message to every partition, opens the connections (each has asked once), waits until all
of them have been answered, and prints the resident memory (VmRSS) of the broker's process after each step. The last
line compares it with the ceiling; the exit status is 1 if it is above.
"""

from __future__ import annotations

import argparse
import re
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from metaq.model import Address
from metaq.wire.text.commands import Put
from metaq.wire.text.encode import encode

SPARE_FILES = 200
"""Descriptors that this process needs beside one per connection."""

IN_FLIGHT = 200
DEADLINE_S = 120.0


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) / 1024


def start(folder: Path, connections: int, partitions: int) -> tuple[subprocess.Popen[str], Address]:
    """Start a broker that accepts as many, on a free port."""
    limits = f"maxConnections={connections + 10}\nmaxPartitions={partitions}\ndiskFreeMinBytes=0\n"
    (folder / "server.ini").write_text(
        f"[system]\nbrokerId=0\nnumPartitions={partitions}\nserverPort=0\nunflushThreshold=0\nunflushInterval=1000\n"
        f"maxSegmentSize=1024*1024*1024\nmaxTransferSize=1024*1024\ndataPath={folder}\n{limits}[topic=idle]\n"
    )
    command = [sys.executable, "-m", "metaq_broker.cli", "start", "-f", str(folder / "server.ini")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    ready = re.match(r"metaq-broker \S+ ready on (\S+),", process.stdout.readline())
    if ready is None:
        raise SystemExit("the broker did not get ready")
    return process, Address.parse(ready[1])


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


def connect(address: Address, count: int) -> list[socket.socket]:
    """Open connections and ask each for the version; return when all have answered."""
    clients: list[socket.socket] = []
    end = time.monotonic() + DEADLINE_S
    with selectors.DefaultSelector() as waiting:
        while len(clients) < count or waiting.get_map():
            if time.monotonic() > end:
                raise SystemExit(f"{len(waiting.get_map())} of {len(clients)} connections were not answered")
            while len(clients) < count and len(waiting.get_map()) < IN_FLIGHT:
                client = socket.create_connection((address.host, address.port), DEADLINE_S)
                client.sendall(b"version 1\r\n")
                waiting.register(client, selectors.EVENT_READ)
                clients.append(client)
            for key, _ in waiting.select(1.0):
                waiting.unregister(key.fileobj)
                if not key.fileobj.recv(1000).startswith(b"result 200"):  # type: ignore[union-attr]
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
    """Raise this process's limit of open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise SystemExit(f"this system allows {hard} open files, {count} are needed (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurement; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--mib-max", type=float, default=512.0)
    options = parser.parse_args(arguments)
    allow_files(options.connections + SPARE_FILES)
    with tempfile.TemporaryDirectory(prefix="metaq-idle-") as folder:
        process, address = start(Path(folder), options.connections, options.partitions)
        try:
            print(f"{'started':>32} {rss_mib(process.pid):8.1f} MiB")
            fill(address, options.partitions)
            print(f"{options.partitions:>21} partitions {rss_mib(process.pid):8.1f} MiB")
            clients = connect(address, options.connections)
            if connections_counted(clients[0]) != len(clients):
                raise SystemExit("the broker has closed connections")
            measured = rss_mib(process.pid)
            print(f"{len(clients):>16} idle connections {measured:8.1f} MiB")
            for client in clients:
                client.close()
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
            if process.stdout is not None:
                process.stdout.close()
    print(f"{'ceiling':>32} {options.mib_max:8.1f} MiB, ratio {measured / options.mib_max:.2f}")
    return int(measured > options.mib_max)


if __name__ == "__main__":
    sys.exit(main())
