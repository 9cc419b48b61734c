"""How fast the client reads: ``read_range`` and single calls, beside a bare socket that reads the same bytes.

    python benchmarks/client_get.py [--runs 3] [--scale 1] [--json FILE] [--folder DIR]

All read the same partition of one broker process, 256 MB. The bare socket has the same number of gets under way,
receives into one buffer that it uses again, and looks at nothing; it is the ceiling. "frames of known size" replaces
the walk over the frame headers by a division: that is what a compiled walk costs, or nearly. All take turns; medians.
MB/s is by the clock; CPU time is that of this process alone, which other work on the machine disturbs less. With two
cores or more, broker and client each have one.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from broker_put import running_broker
from figures import Figure, Report, arguments

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.session import Session
from metaq.client.consumer import Run, fetch, read_range
from metaq.formats.frames import HEADER_BYTES, encode_frame
from metaq.model import Address, Buffer, OffsetRange
from metaq.protocols.text.commands import Get
from metaq.protocols.text.encode import encode

FETCH_BYTES = 1 << 20
OPAQUE = 1_000_000
TOPIC = "bench"
MEGABYTES = 256
RUNS = 3


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


def costs(ways: dict[str, Callable[[], int]], runs: int) -> dict[str, Cost]:
    """Each way's median costs over ``runs`` turns, after one that does not count."""
    taken: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(runs + 1):
        for name, read in ways.items():
            clock, cpu = time.perf_counter(), time.process_time()
            per_ms = 1e12 / read()
            taken[name].append(Cost((time.perf_counter() - clock) * per_ms, (time.process_time() - cpu) * per_ms))
    return {name: Cost(*map(statistics.median, zip(*each[1:], strict=True))) for name, each in taken.items()}


def reading(report: Report, folder: Path, body_bytes: int, byte_count: int, runs: int, cpu: int | None) -> None:
    """Two figures a way, by the clock and in CPU time, for messages of ``body_bytes``."""
    with running_broker(folder, cpu) as (host, port):
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


def main() -> None:
    parser = arguments(__doc__, RUNS)
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    given = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:
        os.sched_setaffinity(0, set(cpus[1:]))
    size = max(4 * FETCH_BYTES, int(MEGABYTES * 10**6 * given.scale))
    with Report("The client alone", given.json) as report:
        for body_bytes in (1000, 100):
            with tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=given.folder) as folder:
                reading(report, Path(folder), body_bytes, size, given.runs, cpus[0] if len(cpus) > 1 else None)


if __name__ == "__main__":
    main()
