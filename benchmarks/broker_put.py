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
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bare_peer import bare_peer, send_file, take_messages

from metaq.checksum import checksum
from metaq.model import Address
from metaq.wire.text.commands import Get, Put, PutBatch, Result
from metaq.wire.text.decode import NEED_DATA, ReplyDecoder
from metaq.wire.text.encode import encode
from metaq.wire.text.frames import encode_frame

TOPIC = "bench"
SMALL_BODY = b"x" * 100
BLOCK_BYTES = 1 << 20
GET_BYTES = 1 << 20
OPAQUE = 1_000_000
UNANSWERED_BYTES_MAX = 1 << 20
"""How far the pipelining client runs ahead of the replies."""


class Row(NamedTuple):
    """One line of the table: figure and ceiling in ``unit``."""

    name: str
    unit: str
    broker: float
    ceiling: float


def pipelined(address: tuple[str, int], request: bytes, reply_bytes: int, seconds: float, ahead: int) -> float:
    """Send ``request`` over and over, at most ``ahead`` unanswered; return answered requests per second.

    All replies must have ``reply_bytes`` bytes: they are counted, not decoded, so that the client is not what is measured.
    """
    connection = _connect(address)
    connection.setblocking(False)
    per_send = max(1, min(ahead, (1 << 18) // len(request)))
    out = memoryview(request * per_send)
    started, sent, received, position = time.perf_counter(), 0, 0, 0
    stop_at = started + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while True:
            answered = received // reply_bytes
            sending = time.perf_counter() < stop_at or position
            if not sending and answered >= sent:
                break
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if sending and sent - answered <= ahead else 0)
            selector.modify(connection, wanted)
            for _, events in selector.select(10):
                if events & selectors.EVENT_READ:
                    received += len(connection.recv(1 << 20))
                if events & selectors.EVENT_WRITE:
                    position += connection.send(out[position:])
                    if position == len(out):
                        position, sent = 0, sent + per_send
    elapsed = time.perf_counter() - started
    connection.close()
    return sent / elapsed


def round_trips(address: tuple[str, int], request: bytes, reply_bytes: int, seconds: float) -> list[float]:
    """Send one request at a time; return the time of each round trip in seconds, sorted."""
    connection = _connect(address)
    times, stop_at = [], time.perf_counter() + seconds
    while (started := time.perf_counter()) < stop_at:
        connection.sendall(request)
        missing = reply_bytes
        while missing:
            missing -= len(connection.recv(missing))
        times.append(time.perf_counter() - started)
    connection.close()
    return sorted(times)


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


def reply_size(address: tuple[str, int], request: bytes) -> int:
    """Return how long the reply to ``request`` is once offsets have reached their usual number of digits."""
    connection, decoder = _connect(address), ReplyDecoder()
    connection.sendall(request)
    while (reply := decoder.next_reply()) is NEED_DATA:
        decoder.receive_data(connection.recv(1 << 20))
    assert isinstance(reply, Result)
    assert reply.code == 200, reply
    connection.close()
    return len(encode(reply))


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
            # Offsets of ten digits from the first reply on: all replies of a run are equally long.
            self._fill(address)
            yield self._puts(address, "text put, pipelined, 100 B", put_request(SMALL_BODY), 1, "put/s")
            for body_bytes in (100, 1000):
                request, count = batch_request(b"x" * body_bytes)
                name = f"batched put, 1 MiB blocks of {body_bytes} B"
                yield self._puts(address, name, request, len(request) / 1e6, "MB/s", ahead=4)
            yield from self._round_trips(address)
            yield self._gets(address)

    def _fill(self, address: tuple[str, int]) -> None:
        request, _ = batch_request(b"x" * 1000)
        while self._end(address) < 1_000_000_000:
            pipelined(address, request, reply_size(address, request), 0.5, 4)

    def _end(self, address: tuple[str, int]) -> int:
        connection, decoder = _connect(address), ReplyDecoder()
        connection.sendall(b"offset %b g 0 9000000000000000000 1\r\n" % TOPIC.encode())
        while (reply := decoder.next_reply()) is NEED_DATA:
            decoder.receive_data(connection.recv(1 << 16))
        connection.close()
        return int(reply.text) if isinstance(reply, Result) and reply.code == 200 else 0

    def _best(self, measure: Callable[[], float]) -> float:
        return max(measure() for _ in range(self.rounds))

    def _puts(
        self, address: tuple[str, int], name: str, request: bytes, factor: float, unit: str, ahead: int = 8192
    ) -> Row:
        size = reply_size(address, request)
        broker = self._best(lambda: pipelined(address, request, size, self.seconds, ahead))

        def bare() -> float:
            with bare_peer(
                take_messages, self.folder / "bare", len(request), size, True, cpu=self.server_cpu
            ) as peer:
                return pipelined(peer, request, size, self.seconds, ahead)

        return Row(name, unit, broker * factor, self._best(bare) * factor)

    def _round_trips(self, address: tuple[str, int]) -> Iterator[Row]:
        request = put_request(SMALL_BODY)
        size = reply_size(address, request)
        ours = round_trips(address, request, size, self.seconds)
        with bare_peer(take_messages, self.folder / "bare", len(request), size, True, cpu=self.server_cpu) as peer:
            bare = round_trips(peer, request, size, self.seconds)
        for percent in (50, 99):
            yield Row(f"durable put, one at a time, p{percent}", "ms", _at(ours, percent), _at(bare, percent))

    def _gets(self, address: tuple[str, int]) -> Row:
        request = encode(Get(TOPIC, "g", 0, 0, GET_BYTES, OPAQUE))
        head = len(b"value %d %d\r\n" % (GET_BYTES, OPAQUE))
        size = head + GET_BYTES
        broker = self._best(lambda: pipelined(address, request, size, self.seconds, 2))
        file = next((self.folder / "broker").glob("bench-0/*.meta"))

        def bare() -> float:
            with bare_peer(send_file, file, len(request), head, GET_BYTES, cpu=self.server_cpu) as peer:
                return pipelined(peer, request, size, self.seconds, 2)

        return Row("get, 1 MiB replies", "MB/s", broker * GET_BYTES / 1e6, self._best(bare) * GET_BYTES / 1e6)


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
            figures = f"{row.broker:12,.3f} {row.ceiling:12,.3f}" if row.unit == "ms" else f"{row.broker:12,.0f} {row.ceiling:12,.0f}"
            print(f"{row.name:44} {figures} {row.broker / row.ceiling:7.2f}  {row.unit}", flush=True)


if __name__ == "__main__":
    main()
