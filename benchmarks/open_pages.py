"""Measures whether pages that are open delay puts: the latency of puts with pages of the dashboard open and without.

A broker with ``[http]`` runs with a number of topics. A producer puts a message at a time, at a fixed rate; the latency
of each is from its sending to its acknowledgement. Clients that stand for open pages ask for the pages again and again,
as browsers do: the overview, what arrives in a topic, its newest messages, the topics, a group, the topic. Their
process, which stands for other machines, runs at the lowest priority; the dashboard runs as the broker starts it.
Rounds are short, and three follow each other: one with pages and two without, in an order that changes, so that all see
the same machine.

The result is the ratio of the 99th percentiles with and without, beside the same ratio of the two without pages, which
is the machine's noise, each with the interval that 95 % of it are in if rounds are drawn again and again. Beside it
stands what the pages take: processor time of the broker and of the dashboard, and how long the broker and the producer,
ready to run, waited for a processor.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from metaq import MetaQ
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import put
from metaq.model import Address, Message

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext

    Answers = multiprocessing.SimpleQueue[int]

TOPIC: Final = "speed"
GROUP: Final = "billing"
DEADLINE_S: Final = 120.0
READY: Final = re.compile(r"metaq-broker \S+ ready on (\S+), data in .*\n")
HTTP: Final = re.compile(r"HTTP and dashboard: http://(\S+)/\n")
PAGES: Final = (
    *("/", f"/topic/live/stream?topic={TOPIC}", f"/topic/messages?topic={TOPIC}", "/topics"),
    *(f"/group?group={GROUP}", f"/topic?topic={TOPIC}"),
)
"""What the clients show, one each, again from the first on if there are more clients."""
STREAM: Final = "/stream?"
"""A page with this in its address does not end; the others are asked for again."""
DRAWS: Final = 2000
LOWEST_PRIORITY: Final = 19


@dataclass(frozen=True, slots=True)
class Settings:
    """What to measure: ``rounds`` of each kind of ``seconds``; ``rate`` puts a second; ``pages`` clients that ask every
    ``every_s``; ``topics`` of the broker.
    """

    rounds: int
    seconds: float
    rate: float
    pages: int
    every_s: float
    topics: int


@dataclass(slots=True)
class Effort:
    """What processes took, in seconds: processor time of the broker and of the dashboard, and the time that the broker
    and the producer waited for a processor.
    """

    broker_s: float = 0.0
    dashboard_s: float = 0.0
    broker_waits_s: float = 0.0
    producer_waits_s: float = 0.0


@dataclass(slots=True)
class Latencies:
    """Of one kind of rounds: seconds of each put of each round, and what processes took altogether."""

    rounds: list[list[float]] = field(default_factory=list)
    effort: Effort = field(default_factory=Effort)

    @property
    def all(self) -> list[float]:
        """Seconds of each put of all rounds."""
        return list(chain.from_iterable(self.rounds))


@dataclass(frozen=True, slots=True)
class Found:
    """With pages, and two times without."""

    quiet: Latencies = field(default_factory=Latencies)
    again: Latencies = field(default_factory=Latencies)
    busy: Latencies = field(default_factory=Latencies)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The 99th percentile of the puts of some rounds, divided by the other rounds', and the interval of 95 %."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, these: Latencies, others: Latencies) -> Ratio:
        """Compare rounds that followed each other: pairs of them are drawn, as many as there are, ``DRAWS`` times."""
        pairs = [(np.array(a), np.array(b)) for a, b in zip(these.rounds, others.rounds, strict=True)]
        random = np.random.default_rng(1)
        drawn = [_ratio([pairs[one] for one in random.integers(len(pairs), size=len(pairs))]) for _ in range(DRAWS)]
        low, high = np.percentile(drawn, (2.5, 97.5))
        return cls(_ratio(pairs), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def _ratio(pairs: Sequence[tuple[Any, Any]]) -> float:
    these, others = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return float(np.percentile(these, 99) / np.percentile(others, 99))


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which ``part`` of the values are."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


@contextmanager
def running_broker(folder: Path, number: int = 0) -> Iterator[tuple[Address, Address, int]]:
    """Run a broker with HTTP access; yield its address, its HTTP address, and the id of its process."""
    file = folder / "server.ini"
    file.write_text(
        f"[system]\nbrokerId={number}\nserverPort=0\ndataPath={folder / 'data'}\nunflushThreshold=0\n"
        "maxPartitions=100000\n[http]\nport=0\n[topic=*]\n"
    )
    command = [sys.executable, "-m", "metaq_broker.cli", "start", "-f", str(file), "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready, served = READY.fullmatch(process.stdout.readline()), HTTP.fullmatch(process.stdout.readline())
            if ready is None or served is None:
                raise SystemExit("the broker did not get ready")
            yield Address.parse(ready[1]), Address.parse(served[1]), process.pid
        finally:
            process.terminate()
            process.wait(60)


def fill(broker: Address, topics: int, name: str = "topic") -> None:
    """Make topics with a message each, ``name`` being the beginning of theirs; one with more messages, and a group."""
    with MetaQ(str(broker)) as mq:
        producer = mq.producer()
        producer.send_many(TOPIC, [f"order {number}" for number in range(20_000)])
        sent = [producer.submit(f"{name}-{number:05}", "one tea") for number in range(topics - 1)]
        for each in sent:
            each.result(DEADLINE_S)
        with mq.consumer(GROUP, [TOPIC]) as consumer:
            consumer.fetch(max_messages=100, timeout=5)


def put_for(broker: Address, seconds: float, rate: float) -> list[float]:
    """Put messages for ``seconds``; return the latency of each."""
    pool, found = SessionPool(), list[float]()
    began_s = time.perf_counter()
    with pool.lease(broker) as session:
        for number in range(int(seconds * rate)):
            due_s = began_s + number / rate
            if (early_s := due_s - time.perf_counter()) > 0:
                time.sleep(early_s)
            sent_s = time.perf_counter()
            put(session, TOPIC, 0, Message(b"x" * 100))
            found.append(time.perf_counter() - sent_s)
    pool.close()
    return found


class Pages:
    """State shared by the process that asks for pages and the one that puts: whether pages are open, and how many
    requests are in flight.
    """

    def __init__(self, context: SpawnContext) -> None:
        self.ready, self.open, self.end = context.Event(), context.Event(), context.Event()
        self.asking = context.Value("i", 0)
        self.answers: Answers = context.SimpleQueue()

    @contextmanager
    def ask(self) -> Iterator[None]:
        """Count one that asks."""
        with self.asking.get_lock():
            self.asking.value += 1
        try:
            yield
        finally:
            with self.asking.get_lock():
                self.asking.value -= 1

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the pages; close them at the end, and wait for the answers that are still to come."""
        self.open.set()
        try:
            yield
        finally:
            self.open.clear()
            while self.asking.value:
                time.sleep(0.01)


def look(server: Address, settings: Settings, number: int, pages: Pages) -> None:
    """Be one page whenever pages are open, until the end; then report the number of answers, -1 if one was no success.

    Pages begin one after the other.
    """
    path, count = PAGES[number % len(PAGES)], 0
    while not pages.end.is_set() and count >= 0:
        if not pages.open.wait(0.05):
            continue
        time.sleep(settings.every_s * number / settings.pages)
        with pages.ask(), contextlib.closing(http.client.HTTPConnection(server.host, server.port, timeout=60)) as asked:
            found = follow(asked, path, pages) if STREAM in path else show(asked, path, pages, settings.every_s)
        count = -1 if found < 0 else count + found
    pages.answers.put(count)


def show(connection: http.client.HTTPConnection, path: str, pages: Pages, every_s: float) -> int:
    """Ask for a page while pages are open; return the number of answers, -1 after one that was no success."""
    count = 0
    while pages.open.is_set():
        until_s = time.monotonic() + every_s
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            return -1
        count += 1
        while pages.open.is_set() and time.monotonic() < until_s:
            time.sleep(0.01)
    return count


def follow(connection: http.client.HTTPConnection, path: str, pages: Pages) -> int:
    """Read an event stream while pages are open; return 1, -1 if it was no success."""
    connection.request("GET", path)
    answer = connection.getresponse()
    while pages.open.is_set() and answer.status == 200:
        answer.read1()
    return 1 if answer.status == 200 else -1


def be_pages(server: Address, settings: Settings, pages: Pages) -> None:
    """Be all pages, each in a thread of this process."""
    os.nice(LOWEST_PRIORITY)
    threads = [threading.Thread(target=look, args=(server, settings, each, pages)) for each in range(settings.pages)]
    for each in threads:
        each.start()
    pages.ready.set()
    for each in threads:
        each.join()


@contextmanager
def running_pages(server: Address, settings: Settings, counts: list[int]) -> Iterator[Pages]:
    """Run the process of the pages, which are closed at first; then add the number of answers of each to ``counts``."""
    context = multiprocessing.get_context("spawn")
    pages = Pages(context)
    process = context.Process(target=be_pages, args=(server, settings, pages))
    process.start()
    try:
        if not pages.ready.wait(DEADLINE_S):
            raise SystemExit("the pages did not get ready")
        yield pages
    finally:
        pages.end.set()
        counts += [pages.answers.get() for _ in range(settings.pages)]
        process.join()
    if -1 in counts:
        raise SystemExit("an answer to a page was no success")


def effort(broker: int, dashboard: int) -> Effort:
    """Return what the processes have taken since they started."""
    (broker_s, broker_waits_s), (_, producer_waits_s) = times(broker), times(os.getpid())
    return Effort(broker_s, ran_s(dashboard), broker_waits_s, producer_waits_s)


def ran_s(pid: int) -> float:
    """Return the processor time of a process with all threads that it had, seconds, in whole ticks of the system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def times(pid: int) -> tuple[float, float]:
    """Return for how long the threads of a process ran, and for how long, ready to run, they waited, seconds."""
    found = [(one / "schedstat").read_text().split() for one in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(one[0]) for one in found) / 1e9, sum(int(one[1]) for one in found) / 1e9


def child_of(pid: int) -> int:
    """Return the id of the one process that a process has started."""
    found = [one for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]
    (child,) = found
    return int(child)


def measure(settings: Settings, folder: Path) -> tuple[Found, int]:
    """Return the latencies, and how many answers the pages got."""
    found, counts = Found(), list[int]()
    kinds = (found.quiet, found.busy, found.again)
    with running_broker(folder) as (broker, server, pid):
        fill(broker, settings.topics)
        put_for(broker, settings.seconds, settings.rate)
        dashboard = child_of(pid)
        with running_pages(server, settings, counts) as pages:
            for number in range(settings.rounds):
                for kind in (*kinds[number % 3 :], *kinds[: number % 3]):
                    before = effort(pid, dashboard)
                    with pages.opened() if kind is found.busy else nullcontext():
                        kind.rounds.append(put_for(broker, settings.seconds, settings.rate))
                        after = effort(pid, dashboard)
                    for name, value in asdict(after).items():
                        setattr(kind.effort, name, getattr(kind.effort, name) + value - getattr(before, name))
    return found, sum(counts)


def main() -> None:
    """Measure, and print the percentiles and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each kind, default %(default)s")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round, default %(default)s")
    parser.add_argument("--rate", type=float, default=200.0, help="puts a second, default %(default)s")
    parser.add_argument("--pages", type=int, default=5, help="clients, default %(default)s")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two looks, default %(default)s")
    parser.add_argument("--topics", type=int, default=100, help="topics of the broker, default %(default)s")
    parser.add_argument("--folder", help="where the messages are; one in memory leaves out the disk's own delays")
    given = parser.parse_args()
    settings = Settings(given.rounds, given.seconds, given.rate, given.pages, given.every, given.topics)
    with tempfile.TemporaryDirectory(prefix="metaq-pages-", dir=given.folder) as folder:
        found, answers = measure(settings, Path(folder))
    print(f"{settings.pages} pages, {answers} answers, {settings.topics} topics, load {os.getloadavg()[0]:.1f}")
    for name, kind in (("without", found.quiet), ("without", found.again), ("with", found.busy)):
        values, puts = kind.all, len(kind.all)
        shown = "  ".join(f"p{part * 100:g} {percentile(values, part) * 1000:6.2f} ms" for part in (0.5, 0.9, 0.99))
        waits = [kind.effort.broker_waits_s, kind.effort.producer_waits_s]
        waited = " and ".join(f"{one / puts * 1e6:.0f}" for one in waits)
        print(f"{name:8} {puts:6} puts  {shown}  waits of broker and producer for a processor: {waited} us a put")
    seconds, quiet = settings.rounds * settings.seconds, (found.quiet.effort, found.again.effort)
    for name in ("broker", "dashboard"):
        without, taken = (getattr(one, f"{name}_s") for one in quiet), getattr(found.busy.effort, f"{name}_s")
        print(f"the {name} spends {(taken - sum(without) / 2) / seconds:.2%} of a core on pages")
    print(f"p99 with / without:    {Ratio.of(found.busy, found.quiet)}, {Ratio.of(found.busy, found.again)}")
    print(f"p99 without / without: {Ratio.of(found.again, found.quiet)}: noise")


if __name__ == "__main__":
    main()
