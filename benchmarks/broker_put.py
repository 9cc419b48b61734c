"""What one connection gets out of the broker: text puts, durable round trips, batched puts, gets.

    python benchmarks/broker_put.py [--seconds 2] [--rounds 3] [--folder DIR]

The broker runs as its own process in group-commit mode (every acknowledgement comes after fsync). Each figure stands
beside its ceiling from the same run: a peer that does the same system calls on sockets and files and nothing else
(benchmarks/bare_peer.py). Read the ratios; the figures themselves are those of this machine's disk and cores.
With two cores or more, server and client each have one.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from bare_peer import bare_peer, send_file, take_messages

from metaq.checksum import checksum
from metaq.model import Address
from metaq.wire.text.commands import Get, Put, PutBatch
from metaq.wire.text.encode import encode
from metaq.wire.text.frames import encode_frame

TOPIC = "bench"
SMALL_BODY = b"x" * 100
BLOCK_BYTES = 1 << 20
GET_BYTES = 1 << 20
OPAQUE = 1_000_000
REPLY = b"result 200 35 1000000\r\n5468928979710803309 0 1234567890"
"""What the bare peer answers a put with: as long as the broker's own reply."""
SEND_BYTES = 1 << 18
"""Requests that the client hands to the system at once."""


class Row(NamedTuple):
    """One line of the table: figure and ceiling in ``unit``."""

    name: str
    unit: str
    broker: float
    ceiling: float


def pipelined(
    address: tuple[str, int], request: bytes, answered: Callable[[bytearray, int], float], seconds: float, ahead: int
) -> float:
    """Send ``request`` over and over, at most ``ahead`` unanswered; return answered requests per second.

    ``answered`` says how many replies the first bytes of a buffer are; they are not decoded, so that the client is not
    what is measured.
    """
    connection = _connect(address)
    connection.setblocking(False)
    per_send = max(1, min(ahead // 2, SEND_BYTES // len(request)))
    out, received = memoryview(request * per_send), bytearray(1 << 20)
    sent, done, position, started = 0, 0.0, 0, time.perf_counter()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while (sending := time.perf_counter() < started + seconds or position) or done + 1e-6 < sent:
            writing = sending and sent - done <= ahead - per_send
            selector.modify(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0))
            for _, events in selector.select(30):
                if events & selectors.EVENT_READ:
                    done += answered(received, connection.recv_into(received))
                if events & selectors.EVENT_WRITE:
                    position += connection.send(out[position:])
                    if position == len(out):
                        position, sent = 0, sent + per_send
    elapsed = time.perf_counter() - started
    connection.close()
    return sent / elapsed


def round_trips(address: tuple[str, int], request: bytes, seconds: float) -> list[float]:
    """Send one request at a time; return the time of each round trip in seconds, sorted."""
    connection = _connect(address)
    times, stop_at, received = [], time.perf_counter() + seconds, bytearray(4096)
    while (started := time.perf_counter()) < stop_at:
        connection.sendall(request)
        while not count_replies(received, connection.recv_into(received)):
            pass
        times.append(time.perf_counter() - started)
    connection.close()
    return sorted(times)


def count_replies(received: bytearray, size: int) -> int:
    """Return how many replies to puts there are in the first ``size`` bytes: each has one line end."""
    assert size, "the connection was closed"
    assert received.find(b" 500 ", 0, size) < 0, received[:200]
    return received.count(b"\n", 0, size)


def put_request(body: bytes) -> bytes:
    """A put as the Java client sends it."""
    return encode(Put(TOPIC, 0, body, 0, OPAQUE, checksum(body)))


def batch_request(body: bytes) -> tuple[bytes, int]:
    """A batched put of about ``BLOCK_BYTES`` and how many messages it holds."""
    frame = encode_frame(0, 0, body)
    count = BLOCK_BYTES // len(frame)
    return encode(PutBatch(TOPIC, 0, frame * count, count, OPAQUE)), count


@contextmanager
def running_broker(folder: Path, cpu: int | None) -> Iterator[tuple[str, int]]:
    """Run a development broker on ``folder``; yield its address."""
    command = [sys.executable, "-m", "metaq_broker.cli", "dev", str(folder), "--port", "0", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = Address.parse(process.stdout.readline().split(" ready on ")[1].split(",")[0])
        if cpu is not None:
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                os.sched_setaffinity(int(thread), {cpu})
        try:
            yield address.host, address.port
        finally:
            process.terminate()


class Bench:
    """One run of everything against fresh folders."""

    def __init__(self, folder: Path, seconds: float, rounds: int) -> None:
        self.folder, self.seconds, self.rounds = folder, seconds, rounds
        cpus = sorted(os.sched_getaffinity(0))
        self.server_cpu = cpus[0] if len(cpus) > 1 else None
        if self.server_cpu is not None:
            os.sched_setaffinity(0, set(cpus[1:]))

    def rows(self) -> Iterator[Row]:
        """Yield the table's rows as they are measured."""
        with running_broker(self.folder / "broker", self.server_cpu) as address:
            yield self._puts(address, "text put, pipelined, 100 B", put_request(SMALL_BODY), 1, "put/s", 8192)
            for body_bytes in (100, 1000):
                request, count = batch_request(b"x" * body_bytes)
                name = f"batched put, {count} messages of {body_bytes} B"
                yield self._puts(address, name, request, len(request) / 1e6, "MB/s", 4)
            yield from self._round_trips(address)
            yield self._gets(address)

    def _best(self, measure: Callable[[], float]) -> float:
        return max(measure() for _ in range(self.rounds))

    def _puts(self, address: tuple[str, int], name: str, request: bytes, factor: float, unit: str, ahead: int) -> Row:
        broker = self._best(lambda: pipelined(address, request, count_replies, self.seconds, ahead))

        def bare() -> float:
            with self._bare_puts(request) as peer:
                return pipelined(peer, request, count_replies, self.seconds, ahead)

        return Row(name, unit, broker * factor, self._best(bare) * factor)

    def _bare_puts(self, request: bytes) -> AbstractContextManager[tuple[str, int]]:
        return bare_peer(take_messages, self.folder / "bare", len(request), REPLY, cpu=self.server_cpu)

    def _round_trips(self, address: tuple[str, int]) -> Iterator[Row]:
        request = put_request(SMALL_BODY)
        ours = round_trips(address, request, self.seconds)
        with self._bare_puts(request) as peer:
            bare = round_trips(peer, request, self.seconds)
        for percent in (50, 99):
            yield Row(f"durable put, one at a time, p{percent}", "ms", _at(ours, percent), _at(bare, percent))

    def _gets(self, address: tuple[str, int]) -> Row:
        request = encode(Get(TOPIC, "g", 0, 0, GET_BYTES, OPAQUE))
        head = len(b"value %d %d\r\n" % (GET_BYTES, OPAQUE))
        file = min((self.folder / "broker").glob(f"{TOPIC}-0/*.meta"))

        def replies(_received: bytearray, size: int) -> float:
            return size / (head + GET_BYTES)

        def bare() -> float:
            with bare_peer(send_file, file, len(request), head, GET_BYTES, cpu=self.server_cpu) as peer:
                return pipelined(peer, request, replies, self.seconds, 4)

        broker = self._best(lambda: pipelined(address, request, replies, self.seconds, 4))
        return Row("get, replies of 1 MiB", "MB/s", broker * GET_BYTES / 1e6, self._best(bare) * GET_BYTES / 1e6)


def _at(times: list[float], percent: int) -> float:
    return 1000 * (statistics.quantiles(times, n=100)[percent - 1])


def _connect(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of which the best counts")
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=options.folder) as folder:
        print(f"{'':44} {'broker':>12} {'ceiling':>12} {'ratio':>7}")
        for row in Bench(Path(folder), options.seconds, options.rounds).rows():
            decimals = 3 if row.unit == "ms" else 0
            figures = f"{row.broker:12,.{decimals}f} {row.ceiling:12,.{decimals}f}"
            print(f"{row.name:44} {figures} {row.broker / row.ceiling:7.2f}  {row.unit}", flush=True)


if __name__ == "__main__":
    main()
