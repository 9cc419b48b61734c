"""Measures whether pages that are open delay puts: the latency of puts with and without clients that ask over HTTP.

A broker with ``[http]`` runs with a number of topics. A producer puts a message at a time, at a fixed rate; the latency
of each is from its sending to its acknowledgement, and the processor time of the broker is its whole process's.
Clients that stand for open pages, in a process of their own, ask every two seconds for what a page shows: topics,
partitions, the newest messages, groups, brokers, and search now and then. Rounds are short, and three follow each
other: one with pages and two without, in an order that changes, so that all see the same machine. The result is the
part of a core that the broker spends on pages, and the ratio of the 99th percentiles with and without, of all puts and
of the rounds that follow each other, beside the same ratio of the two without pages, which is the machine's noise.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
SHOWN: Final = (
    *("/v1/topics?count=50", f"/v1/topics/{TOPIC}/partitions", "/v1/groups", "/v1/stats"),
    *(f"/v1/topics/{TOPIC}/messages?from=newest&limit=20", f"/v1/groups/{GROUP}/lag"),
)
"""What an open page asks for each time."""
SEARCH: Final = f"/v1/topics/{TOPIC}/messages?contains=none&read_max=20000&within_s=5"
SEARCH_EVERY: Final = 5
"""A page searches at every fifth time."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to measure: ``rounds`` of each kind of ``seconds``; ``rate`` puts a second; ``pages`` clients that ask every
    ``every_s``.
    """

    rounds: int
    seconds: float
    rate: float
    pages: int
    every_s: float
    topics: int


@dataclass(slots=True)
class Latencies:
    """Of one kind of rounds: seconds of each put of each round, and the broker's processor time altogether."""

    rounds: list[list[float]] = field(default_factory=list)
    cpu_s: float = 0.0

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
    """The 99th percentile of some rounds, divided by the other rounds': of all puts, and the median of the rounds."""

    whole: float
    median: float

    @classmethod
    def of(cls, these: Latencies, others: Latencies) -> Ratio:
        """Compare rounds that followed each other."""
        each = [percentile(a, 0.99) / percentile(b, 0.99) for a, b in zip(these.rounds, others.rounds, strict=True)]
        return cls(percentile(these.all, 0.99) / percentile(others.all, 0.99), statistics.median(each))

    def __str__(self) -> str:
        return f"{self.whole:.3f} of all puts, {self.median:.3f} the median of the rounds"


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which ``part`` of the values are."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


@contextmanager
def running_broker(folder: Path) -> Iterator[tuple[Address, Address, int]]:
    """Run a broker with HTTP access; yield its address, that of HTTP, and the id of its process."""
    file = folder / "server.ini"
    file.write_text(
        f"[system]\nbrokerId=0\nserverPort=0\ndataPath={folder / 'data'}\nunflushThreshold=0\nmaxPartitions=100000\n"
        "[http]\nport=0\n[topic=*]\n"
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


def fill(broker: Address, topics: int) -> None:
    """Make topics with a message each, messages to search through, and a group."""
    with MetaQ(str(broker)) as mq:
        producer = mq.producer()
        producer.send_many(TOPIC, [f"order {number}" for number in range(20_000)])
        sent = [producer.submit(f"topic-{number:05}", "one tea") for number in range(topics - 1)]
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
    """What the process of the pages and that of the puts share: whether pages are open, and how many ask just now."""

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
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    count = times = 0
    while not pages.end.is_set():
        if not pages.open.wait(0.05):
            continue
        time.sleep(settings.every_s * number / settings.pages)
        while pages.open.is_set() and count >= 0:
            times += 1
            began_s = time.monotonic()
            with pages.ask():
                for path in (*SHOWN, *((SEARCH,) if times % SEARCH_EVERY == 0 else ())):
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    answer.read()
                    count = count + 1 if answer.status == 200 and count >= 0 else -1
            while pages.open.is_set() and time.monotonic() - began_s < settings.every_s:
                time.sleep(0.01)
        if count < 0:
            break
    connection.close()
    pages.answers.put(count)


def be_pages(server: Address, settings: Settings, pages: Pages) -> None:
    """Be all pages, each in a thread of this process."""
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


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(settings: Settings, folder: Path) -> tuple[Found, int]:
    """Return the latencies, and how many answers the pages got."""
    found, counts = Found(), list[int]()
    kinds = (found.quiet, found.busy, found.again)
    with running_broker(folder) as (broker, server, pid):
        fill(broker, settings.topics)
        put_for(broker, settings.seconds, settings.rate)
        with running_pages(server, settings, counts) as pages:
            for number in range(settings.rounds):
                for kind in (*kinds[number % 3 :], *kinds[: number % 3]):
                    began_s = cpu_s(pid)
                    with pages.opened() if kind is found.busy else nullcontext():
                        kind.rounds.append(put_for(broker, settings.seconds, settings.rate))
                    kind.cpu_s += cpu_s(pid) - began_s
    return found, sum(counts)


def main() -> None:
    """Measure, and print the percentiles and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each kind, default %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round, default %(default)s")
    parser.add_argument("--rate", type=float, default=200.0, help="puts a second, default %(default)s")
    parser.add_argument("--pages", type=int, default=5, help="clients, default %(default)s")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks, default %(default)s")
    parser.add_argument("--topics", type=int, default=100, help="topics of the broker, default %(default)s")
    parser.add_argument("--folder", help="where the messages are; one in memory leaves out the disk's own delays")
    given = parser.parse_args()
    settings = Settings(given.rounds, given.seconds, given.rate, given.pages, given.every, given.topics)
    with tempfile.TemporaryDirectory(prefix="metaq-pages-", dir=given.folder) as folder:
        found, answers = measure(settings, Path(folder))
    print(f"{settings.pages} pages, {answers} answers, {settings.topics} topics, load {os.getloadavg()[0]:.1f}")
    for name, kind in (("without", found.quiet), ("without", found.again), ("with", found.busy)):
        values = kind.all
        shown = "  ".join(f"p{part * 100:g} {percentile(values, part) * 1000:7.2f} ms" for part in (0.5, 0.9, 0.99))
        print(f"{name:8} {len(values):6} puts  {shown}")
    quiet_cpu_s = (found.quiet.cpu_s + found.again.cpu_s) / 2
    part = (found.busy.cpu_s - quiet_cpu_s) / (settings.rounds * settings.seconds)
    print(f"the broker spends {part:.2%} of a core on pages")
    print(f"p99 with / without:    {Ratio.of(found.busy, found.quiet)}")
    print(f"p99 without / without: {Ratio.of(found.again, found.quiet)}: noise")


if __name__ == "__main__":
    main()
