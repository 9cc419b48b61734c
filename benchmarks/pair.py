"""What a pair that elects its master costs: durable puts and batches at its master, beside a single broker.

    python benchmarks/pair.py [--runs 5] [--scale 1] [--json FILE] [--folder DIR]

All brokers, and both members of each pair, are processes of this machine, and their files are on one disk. So a pair
does twice the work of a single broker here: two processes, and a sync of the disk for each of two copies. "files synced
twice" shows what the disk itself takes for that: two files, written and synced at the same time by two threads, beside
one file. Members on machines of their own have a disk each, and a network between them.

Sides take turns; medians count, of all round trips for puts one at a time. ``--scale`` is the length of a run in
seconds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from figures import Figure, Report, alternating, arguments
from machine import pages_given_back
from puts_and_gets import TOPIC, Server, batch_request, count_replies, pipelined, put_request, round_trips
from stage import free_port, running_zookeeper, started, until

from metaq.backends.metaq.session import Session
from metaq.discovery.stats import parse_figures
from metaq.errors import MetaqError
from metaq.model import Address

SINGLE: Final = "a single broker"
PUT_AIM: Final = 1.3
BATCH_AIM: Final = 1 / 1.15
SENDERS: Final = 16
"""Connections that send one put at a time each."""

BATCHES_AHEAD: Final = 4
BLOCK: Final = 4096
"""Bytes that are written before each sync of the disk alone."""

SESSION_MS: Final = 6000
MIN_IN_SYNC: Final = (1, 2)


def _configure(folder: Path, port: int, broker_id: int, sections: str) -> Path:
    folder.mkdir()
    file = folder / "server.ini"
    file.write_text(
        f"[system]\nbrokerId={broker_id}\nnumPartitions=2\nserverPort={port}\nhostName=127.0.0.1\nunflushThreshold=0\n"
        "unflushInterval=10000\nmaxSegmentSize=1024*1024*1024\nmaxTransferSize=1024*1024\n"
        f"dataPath={folder / 'data'}\ndiskFreeMinBytes=0\n{sections}[topic={TOPIC}]\n"
    )
    return file


@contextmanager
def _broker(folder: Path, port: int, broker_id: int, sections: str = "") -> Iterator[Address]:
    file = _configure(folder, port, broker_id, sections)
    with started("start", "-f", str(file), "--log-level", "error") as running:
        yield running.address


@contextmanager
def running_pair(folder: Path, zookeeper: str, broker_id: int, min_in_sync: int) -> Iterator[Address]:
    """Run a pair, both members in sync; yield its master's address."""
    folder.mkdir()
    ports = free_port(), free_port()
    with ExitStack() as stack:
        members = []
        for port, other in (ports, ports[::-1]):
            keys = f"other=127.0.0.1:{other}\nminInSync={min_in_sync}\nsessionMs={SESSION_MS}\n"
            sections = f"[zookeeper]\nzk.zkConnect={zookeeper}\n[pair]\n{keys}"
            members.append(stack.enter_context(_broker(folder / str(port), port, broker_id, sections)))
        until(lambda: any(map(_leads_whole_pair, members)), "both members to be in sync")
        yield next(filter(_leads_whole_pair, members))


def _leads_whole_pair(member: Address) -> bool:
    try:
        with closing(Session.connect(member)) as session:
            said: Mapping[str, str] = parse_figures(session.stats(["replication"])["replication"])
    except MetaqError:
        return False
    return said.get("role") == "master" and "," in said["in_sync"]


def synced_files(folder: Path, count: int, seconds: float) -> float:
    """Return the median time in ms in which ``count`` files get a block each and are synced, all at the same time."""
    files = [os.open(folder / f"bare-{number}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC) for number in range(count)]
    block, taken = bytes(BLOCK), list[float]()
    together = threading.Barrier(count)

    def store(file: int) -> None:
        together.wait()
        os.write(file, block)
        os.fdatasync(file)
        together.wait()

    stop_at = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < stop_at or len(taken) < 2:
        others = [threading.Thread(target=store, args=(file,)) for file in files[1:]]
        for each in others:
            each.start()
        store(files[0])
        for each in others:
            each.join()
        taken.append(1000 * (time.perf_counter() - begun))
    for file in files:
        os.close(file)
    return statistics.median(taken)


class Bench:
    """Measures ``pairs``, by their names, beside ``single``. Every measurement takes ``seconds``."""

    def __init__(self, report: Report, single: Server, pairs: Mapping[str, Server], runs: int, seconds: float) -> None:
        self._report, self._single, self._pairs, self._runs, self._seconds = report, single, pairs, runs, seconds

    def run(self) -> None:
        """Add all figures to the report."""
        put, batch = put_request(), batch_request(1000)
        self._one_at_a_time(put)
        senders = [put] * SENDERS
        self._rates(f"put, {SENDERS} at a time", "put/s", lambda at: self._sent(at, senders, 1), None)
        scale = len(batch) / 1e6
        self._rates("batched put", "MB/s", lambda at: scale * self._sent(at, [batch], BATCHES_AHEAD), BATCH_AIM)

    def _sent(self, server: Server, requests: Sequence[bytes], ahead: int) -> float:
        return pipelined([server] * len(requests), requests, count_replies, self._seconds, ahead)

    def _one_at_a_time(self, put: bytes) -> None:
        sides = {SINGLE: self._single, **self._pairs}
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(self._runs):
            for name, server in sides.items():
                taken[name] += round_trips(server, put, self._seconds)
        for name in self._pairs:
            for percent, aim in ((50, PUT_AIM), (99, None)):
                ours, single = (statistics.quantiles(taken[each], n=100)[percent - 1] for each in (name, SINGLE))
                figure = f"{name}, durable put, one at a time, p{percent}"
                self._report.add(Figure(figure, "ms", ours, single, SINGLE, "less", aim))

    def _rates(self, what: str, unit: str, measure: Callable[[Server], float], aim: float | None) -> None:
        sides = [self._single, *self._pairs.values()]
        single, *pairs = alternating([lambda at=at: measure(at) for at in sides], self._runs)  # type: ignore[misc]
        for name, ours in zip(self._pairs, pairs, strict=True):
            self._report.add(Figure(f"{name}, {what}", unit, ours, single, SINGLE, aim=aim))


def _disk(report: Report, folder: Path, runs: int, seconds: float) -> None:
    one, two = alternating([lambda n=n: synced_files(folder, n, seconds) for n in (1, 2)], runs)  # type: ignore[misc]
    report.add(Figure("pair: files synced twice", "ms", two, one, "one file", "less"))


def main(given: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    asked = parser.parse_args(given)
    with (
        Report("A pair beside a single broker", asked.json) as report,
        tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=asked.folder) as name,
        running_zookeeper(Path(name) / "zookeeper") as zookeeper,
        _broker(Path(name) / "single", 0, 1) as single,
        ExitStack() as stack,
    ):
        folder, pairs = Path(name), dict[str, Server]()
        for count in MIN_IN_SYNC:
            at = stack.enter_context(running_pair(folder / f"pair-{count}", zookeeper, 1 + count, count))
            pairs[f"pair, minInSync={count}"] = at.host, at.port
        _disk(report, folder, asked.runs, asked.scale / 2)
        with pages_given_back(folder):
            Bench(report, (single.host, single.port), pairs, asked.runs, asked.scale).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
