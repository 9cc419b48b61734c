"""What a pair that elects its master costs: durable puts and batches at its master, beside a single broker.

    python benchmarks/pair.py [--runs 5] [--scale 1] [--json FILE] [--folder DIR]

All brokers, both members of each pair and the sender are processes of this machine, and their files are on one disk. So
a pair does twice the work of a single broker here: two processes, bytes that are sent once more, and a sync of the disk
for each of two copies. Members on machines of their own have cores and a disk each, and a network between them.

What this machine takes for that is measured in the same run with bare servers: one that writes what it receives, syncs
it and answers, and a pair of them, of which the first one passes every byte on to the second, syncs at the same time,
and answers when both have synced. The aims are for a pair beside a single broker that is slower by as much as the bare
pair is slower than the bare server ("at this disk and these cores").

"beside all cores busy" compares batches with the most that the processes' CPU seconds allow: the rate at which all
cores of the machine would be busy with the sender and both members.

Sides take turns; medians count, of all round trips for puts one at a time. ``--scale`` is the length of a run in
seconds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bare_peer import bare_peer, take_messages, take_messages_twice
from figures import Figure, Report, alternating, arguments, number
from machine import pages_given_back, running
from puts_and_gets import REPLY, TOPIC, Server, batch_request, count_replies, pipelined, put_request, round_trips
from stage import RunningBroker, running_zookeeper, started, until

from metaq.backends.metaq.session import Session
from metaq.discovery.stats import parse_figures
from metaq.errors import MetaqError
from metaq.testing.ports import free_port

SINGLE: Final = "a single broker"
BARE: Final = "a bare server"
BARE_PAIR: Final = "a bare pair"
MASTER: Final = "master"
SLAVE: Final = "slave"
SENDER: Final = "sender"

BATCH: Final = "batched put"
ADJUSTED: Final = "at this disk and these cores"
PUT_AIM: Final = 1.3
BATCH_AIM: Final = 1 / 1.15
SENDERS: Final = 16
"""Connections that send one put at a time each."""

BATCHES_AHEAD: Final = 4
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


class Side(NamedTuple):
    """A broker or a pair: where to send puts, and its processes by their names. A single broker is a master."""

    name: str
    server: Server
    processes: Mapping[str, int]

    def reached(self) -> AbstractContextManager[Server]:
        """Return what yields the address: for bare servers, that starts them."""
        return nullcontext(self.server)


@contextmanager
def _broker(folder: Path, port: int, broker_id: int, sections: str = "") -> Iterator[RunningBroker]:
    file = _configure(folder, port, broker_id, sections)
    with started("start", "-f", str(file), "--log-level", "error") as broker:
        yield broker


@contextmanager
def _single(folder: Path) -> Iterator[Side]:
    with _broker(folder, 0, 1) as broker:
        yield Side(SINGLE, (broker.address.host, broker.address.port), {MASTER: broker.pid})


@contextmanager
def running_pair(folder: Path, zookeeper: str, broker_id: int, min_in_sync: int) -> Iterator[Side]:
    """Run a pair, both members in sync."""
    folder.mkdir()
    ports = free_port(), free_port()
    with ExitStack() as stack:
        members = []
        for port, other in (ports, ports[::-1]):
            keys = f"other=127.0.0.1:{other}\nminInSync={min_in_sync}\nsessionMs={SESSION_MS}\n"
            sections = f"[zookeeper]\nzk.zkConnect={zookeeper}\n[pair]\n{keys}"
            members.append(stack.enter_context(_broker(folder / str(port), port, broker_id, sections)))
        until(lambda: any(map(_leads_whole_pair, members)), "both members to be in sync")
        master, slave = sorted(members, key=_leads_whole_pair, reverse=True)
        server = master.address.host, master.address.port
        yield Side(f"pair, minInSync={min_in_sync}", server, {MASTER: master.pid, SLAVE: slave.pid})


def _leads_whole_pair(member: RunningBroker) -> bool:
    try:
        with closing(Session.connect(member.address)) as session:
            said: Mapping[str, str] = parse_figures(session.stats(["replication"])["replication"])
    except MetaqError:
        return False
    return said.get("role") == "master" and "," in said["in_sync"]


@contextmanager
def _bare(folder: Path, request: bytes) -> Iterator[Server]:
    """Run a server for one connection that writes and syncs requests; yield its address."""
    with bare_peer(take_messages, folder / "bare", len(request), REPLY) as peer:
        yield peer


@contextmanager
def _bare_pair(folder: Path, request: bytes) -> Iterator[Server]:
    """Run one that has a second server write and sync them, too."""
    with (
        bare_peer(take_messages, folder / "bare-slave", len(request), b".") as second,
        bare_peer(take_messages_twice, folder / "bare-master", len(request), REPLY, second) as first,
    ):
        yield first


@contextmanager
def cpu_of(processes: Mapping[str, int]) -> Iterator[dict[str, float]]:
    """Yield a dictionary that has the CPU seconds of processes, by their names, and of the sender after the block."""

    def used() -> dict[str, float]:
        found = running()
        return {name: found[pid].cpu_s for name, pid in processes.items()} | {SENDER: time.process_time()}

    before, taken = used(), dict[str, float]()
    yield taken
    taken |= {name: seconds - before[name] for name, seconds in used().items()}


class Bench:
    """Measures ``pairs`` beside ``single``. Every measurement takes ``seconds``; bare servers write to ``folder``."""

    def __init__(
        self, report: Report, single: Side, pairs: Sequence[Side], folder: Path, runs: int, seconds: float
    ) -> None:
        self._report, self._single, self._pairs, self._folder = report, single, pairs, folder
        self._runs, self._seconds = runs, seconds

    def run(self) -> None:
        """Add all figures to the report."""
        self._one_at_a_time()
        self._many_at_a_time()
        self._batches()

    def _at_this_machine(self, figure: Figure, bare: float, bare_pair: float, aim: float) -> None:
        """Add a figure of a pair, and again beside a single broker that is slower by as much as the bare pair is.

        If the bare pair is not slower, as may happen on a busy machine, the single broker is taken as it is.
        """
        assert figure.peer is not None
        self._report.add(figure)
        slower = max(bare_pair / bare, 1) if figure.better == "less" else min(bare_pair / bare, 1)
        peer, name = figure.peer * slower, f"{SINGLE} x {number(slower)}"
        self._report.add(replace(figure, name=f"{figure.name}, {ADJUSTED}", peer=peer, peer_name=name, aim=aim))

    # ---- puts

    def _one_at_a_time(self) -> None:
        put, what = put_request(), "durable put, one at a time"
        servers: dict[str, Callable[[], AbstractContextManager[Server]]] = {
            **{side.name: side.reached for side in (self._single, *self._pairs)},
            BARE: partial(_bare, self._folder, put),
            BARE_PAIR: partial(_bare_pair, self._folder, put),
        }
        taken: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(self._runs):
            for name, start in servers.items():
                with start() as server:
                    taken[name] += round_trips(server, put, self._seconds)
        for percent in (50, 99):
            at = {name: statistics.quantiles(times, n=100)[percent - 1] for name, times in taken.items()}
            self._report.add(Figure(f"{BARE_PAIR}, {what}, p{percent}", "ms", at[BARE_PAIR], at[BARE], BARE, "less"))
            for side in self._pairs:
                figure = Figure(f"{side.name}, {what}, p{percent}", "ms", at[side.name], at[SINGLE], SINGLE, "less")
                if percent == 50:
                    self._at_this_machine(figure, at[BARE], at[BARE_PAIR], PUT_AIM)
                else:
                    self._report.add(figure)

    def _many_at_a_time(self) -> None:
        puts = [put_request()] * SENDERS

        def sent(side: Side) -> float:
            return pipelined([side.server] * SENDERS, puts, count_replies, self._seconds, 1)

        single, *pairs = alternating([partial(sent, side) for side in (self._single, *self._pairs)], self._runs)
        for side, ours in zip(self._pairs, pairs, strict=True):
            self._report.add(Figure(f"{side.name}, put, {SENDERS} at a time", "put/s", ours, single, SINGLE))

    # ---- batches

    def _batches(self) -> None:
        batch, cpu_ms = batch_request(1000), dict[str, list[Mapping[str, float]]]()

        def rate(server: Server) -> float:
            per_s = pipelined([server], [batch], count_replies, self._seconds, BATCHES_AHEAD)
            return per_s * len(batch) / 1e6

        def measured(side: Side) -> float:
            with cpu_of(side.processes) as used:
                began = time.perf_counter()
                mb_per_s = rate(side.server)
                mb = mb_per_s * (time.perf_counter() - began)
            cpu_ms.setdefault(side.name, []).append({name: 1000 * used_s / mb for name, used_s in used.items()})
            return mb_per_s

        def bare(start: Callable[[Path, bytes], AbstractContextManager[Server]]) -> float:
            with start(self._folder, batch) as server:
                return rate(server)

        sides = [partial(measured, side) for side in (self._single, *self._pairs)]
        found = alternating([*sides, partial(bare, _bare), partial(bare, _bare_pair)], self._runs)
        single, *pairs, bare_one, bare_two = found
        self._report.add(Figure(f"{BARE_PAIR}, {BATCH}", "MB/s", bare_two, bare_one, BARE))
        for side, ours in zip(self._pairs, pairs, strict=True):
            figure = Figure(f"{side.name}, {BATCH}", "MB/s", ours, single, SINGLE)
            self._at_this_machine(figure, bare_one, bare_two, BATCH_AIM)
            self._cpu(side, ours, cpu_ms)

    def _cpu(self, side: Side, mb_per_s: float, cpu_ms: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
        """Add what each process needs for a MB, and how fast batches could be if it never waited for another one."""

        def median(of: Side, process: str) -> float:
            taken = cpu_ms[of.name]
            return statistics.median(each[process] for each in taken[1:] or taken)  # the first one warms up

        broker = median(self._single, MASTER)
        for process in (MASTER, SLAVE):
            name = f"{side.name}, {BATCH}, CPU of the {process}"
            self._report.add(Figure(name, "ms/MB", median(side, process), broker, SINGLE, "less"))
        cores = len(os.sched_getaffinity(0))
        needed = sum(median(side, process) for process in (MASTER, SLAVE, SENDER))
        name = f"{side.name}, {BATCH}, beside all cores busy"
        peer_name = f"{needed:.2f} ms of CPU a MB, sender included, on {cores} cores"
        self._report.add(Figure(name, "MB/s", mb_per_s, 1000 * cores / needed, peer_name))


def main(given: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    asked = parser.parse_args(given)
    with (
        Report("A pair beside a single broker", asked.json) as report,
        tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=asked.folder) as name,
        running_zookeeper(Path(name) / "zookeeper") as zookeeper,
        _single(Path(name) / "single") as single,
        ExitStack() as stack,
    ):
        folder = Path(name)
        pairs = [
            stack.enter_context(running_pair(folder / f"pair-{count}", zookeeper, 1 + count, count))
            for count in MIN_IN_SYNC
        ]
        with pages_given_back(folder):
            Bench(report, single, pairs, folder, asked.runs, asked.scale).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
