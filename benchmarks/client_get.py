"""How fast the client reads: ``read_range`` and single calls, beside a bare socket that reads the same bytes.

    python benchmarks/client_get.py [--megabytes 512] [--rounds 3] [--folder DIR]

All read the same partition of one broker process. The bare socket has the same number of gets under way, receives into
one buffer that it uses again, and looks at nothing; it is the ceiling. "frames of known size" replaces the walk over
the frame headers by a division: that is what a compiled walk costs, or nearly. Rounds take turns, the best counts. MB/s
is by the clock; "client CPU" is milliseconds of this process per GB, which other work on the machine disturbs less.
With two cores or more, broker and client each have one.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from broker_put import running_broker

from metaq.client.batch_writer import BatchWriter
from metaq.client.consumer import Run, fetch, read_range
from metaq.client.session import Session
from metaq.model import Address, Buffer, OffsetRange
from metaq.wire.text.commands import Get
from metaq.wire.text.encode import encode
from metaq.wire.text.frames import HEADER_BYTES, encode_frame

FETCH_BYTES = 1 << 20
OPAQUE = 1_000_000
TOPIC = "bench"


def bare_socket(address: Address, end: int, under_way: int) -> int:
    """Read ``end`` bytes of the partition in replies of ``FETCH_BYTES`` and forget them; the number of bytes."""
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
    """Fill the partition with equal messages; a session, and the readable end."""
    session = Session.connect(address)
    frame = encode_frame(0, 0, b"x" * body_bytes)
    count = FETCH_BYTES // len(frame)
    writer = BatchWriter(session, TOPIC)
    for _ in range(byte_count // (count * len(frame))):
        writer.write(0, frame * count, count)
    receipts = writer.flush()
    return session, receipts[-1].offset + count * len(frame)


class Cost(NamedTuple):
    """What reading cost: by the clock and in this process's CPU time, both in milliseconds per GB."""

    clock_ms: float
    cpu_ms: float


def costs(ways: dict[str, Callable[[], int]], rounds: int) -> dict[str, Cost]:
    """Each way's least costs over ``rounds`` turns."""
    least = dict.fromkeys(ways, Cost(float("inf"), float("inf")))
    for _ in range(rounds):
        for name, read in ways.items():
            clock, cpu = time.perf_counter(), time.process_time()
            per_ms = 1e12 / read()
            cost = Cost((time.perf_counter() - clock) * per_ms, (time.process_time() - cpu) * per_ms)
            least[name] = Cost(*map(min, least[name], cost))
    return least


def rows(
    folder: Path, body_bytes: int, byte_count: int, rounds: int, cpu: int | None
) -> Iterator[tuple[str, Cost, Cost]]:
    """(name, cost, cost of the bare socket) for messages of ``body_bytes``."""
    with running_broker(folder, cpu) as (host, port):
        address = Address(host, port)
        session, end = filled(address, body_bytes, byte_count)
        known = partial(known_size, HEADER_BYTES + body_bytes)
        ways: dict[str, Callable[[], int]] = {
            "bare, 1": partial(bare_socket, address, end, 1),
            "bare, 2": partial(bare_socket, address, end, 2),
            "fetch, one by one": partial(one_by_one, session, end),
            "read_range": partial(ranged, session, end),
            "read_range, frames of known size": partial(ranged, session, end, known),
        }
        measured = costs(ways, rounds)
        session.close()
    for name in list(ways)[2:]:
        yield name, measured[name], measured["bare, 1" if name.startswith("fetch") else "bare, 2"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512, help="bytes in the partition")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of which the best counts")
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:
        os.sched_setaffinity(0, set(cpus[1:]))
    print(f"{'':50} {'MB/s':>6} {'ceiling':>8} {'ratio':>6}   {'client CPU':>10} {'ceiling':>8} {'ratio':>6}")
    for body_bytes in (1000, 100):
        with tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=options.folder) as folder:
            cpu = cpus[0] if len(cpus) > 1 else None
            for name, ours, bare in rows(Path(folder), body_bytes, options.megabytes * 10**6, options.rounds, cpu):
                by_clock = (
                    f"{1e6 / ours.clock_ms:6,.0f} {1e6 / bare.clock_ms:8,.0f} {bare.clock_ms / ours.clock_ms:6.2f}"
                )
                by_cpu = f"{ours.cpu_ms:10,.0f} {bare.cpu_ms:8,.0f} {bare.cpu_ms / ours.cpu_ms:6.2f}"
                print(f"{name + f', messages of {body_bytes} B':50} {by_clock}   {by_cpu}", flush=True)


if __name__ == "__main__":
    main()
