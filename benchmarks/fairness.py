"""How long an honest put waits beside connections that send as fast as they can.

    python benchmarks/fairness.py [--scale 1] [--json FILE] [--connections 10,50,200,1000] [--seconds 5]

One client puts a message of 100 bytes, waits for the answer, which comes after fsync, and puts the next. The others
keep 2,000 puts of 100 bytes each under way, in two processes on the same machine; in a second pass without a checksum,
as old clients put, which costs the broker more. The median of the honest client stands beside a limit: 0.1 s with up to
50 connections, 0.3 s with more. What all others put in a second meanwhile says what fairness costs. ``--runs`` changes
nothing, ``--scale`` multiplies the seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from broker_process import started
from figures import Figure, Report, arguments

from metaq.formats.checksum import checksum
from metaq.model import Address
from metaq.protocols.text.commands import Put
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder
from metaq.protocols.text.encode import encode

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

BODY = b"x" * 100
WINDOW = 2000
PROCESSES = 2
LEAD_S = 1.0
"""The others send for so long before the honest client begins, and after it."""

DEADLINE_S = 120.0
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


def measure(report: Report, address: Address, kind: str, connections: int, lasts_s: float) -> None:
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


def main(given: Sequence[str] | None = None) -> int:
    """Run the measurements; return the exit status: 1 if a median is over its limit."""
    parser = arguments(__doc__)
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
                measure(report, broker.address, kind, connections, options.seconds * options.scale)
    return int(any(figure.met is False for figure in report.figures))


if __name__ == "__main__":
    sys.exit(main())
