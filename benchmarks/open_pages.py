"""Measures whether pages that are open delay puts: the latency of puts with and without clients that ask over HTTP.

A broker with ``[http]`` runs with a number of topics. A producer puts a message at a time, at a fixed rate; the latency
of each is from when it was due to its acknowledgement. Clients that stand for open pages ask every two seconds for what
a page shows: topics, partitions, the newest messages, groups, brokers, and search now and then. Rounds with and without
them alternate, so that both see the same machine. The result is the ratio of the 99th percentiles: of each pair of
rounds, and of all puts.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from metaq import MetaQ
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import put
from metaq.model import Address, Message

TOPIC: Final = "speed"
GROUP: Final = "billing"
READY: Final = re.compile(r"metaq-broker \S+ ready on (\S+), data in .*\n")
HTTP: Final = re.compile(r"HTTP: http://(\S+)/\n")
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
    """What to measure: rounds of ``seconds``, ``rate`` puts a second, ``pages`` clients that ask every ``every_s``."""

    rounds: int
    seconds: float
    rate: float
    pages: int
    every_s: float
    topics: int


@dataclass(slots=True)
class Latencies:
    """Seconds of each put, without and with pages, of each round."""

    quiet: list[list[float]] = field(default_factory=list)
    busy: list[list[float]] = field(default_factory=list)


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which ``part`` of the values are."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


@contextmanager
def running_broker(folder: Path) -> Iterator[tuple[Address, Address]]:
    """Run a broker with HTTP access; yield its address, and that of HTTP."""
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
            yield Address.parse(ready[1]), Address.parse(served[1])
        finally:
            process.terminate()
            process.wait(60)


def fill(broker: Address, topics: int) -> None:
    """Make topics with a message each, messages to search through, and a group."""
    with MetaQ(str(broker)) as mq:
        producer = mq.producer()
        producer.send_many(TOPIC, [f"order {number}" for number in range(20_000)])
        for number in range(topics - 1):
            producer.send(f"topic-{number:05}", "one tea")
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
            put(session, TOPIC, 0, Message(b"x" * 100))
            found.append(time.perf_counter() - due_s)
    pool.close()
    return found


class OpenPages:
    """Clients that ask again and again, each in a thread; ``failures`` are answers other than 200."""

    def __init__(self, server: Address, settings: Settings) -> None:
        self._server, self._settings = server, settings
        self._end = threading.Event()
        self.answers = self.failures = 0
        self._threads = [threading.Thread(target=self._look, args=(number,)) for number in range(settings.pages)]

    def __enter__(self) -> OpenPages:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for each in self._threads:
            each.join()

    def _look(self, number: int) -> None:
        connection = http.client.HTTPConnection(self._server.host, self._server.port, timeout=60)
        self._end.wait(self._settings.every_s * number / self._settings.pages)
        times = 0
        while not self._end.is_set():
            times += 1
            for path in (*SHOWN, *((SEARCH,) if times % SEARCH_EVERY == 0 else ())):
                connection.request("GET", path)
                answer = connection.getresponse()
                answer.read()
                self.answers += 1
                self.failures += answer.status != 200
            self._end.wait(self._settings.every_s)
        connection.close()


def measure(settings: Settings, folder: Path) -> tuple[Latencies, int]:
    """Return the latencies, and how many answers the pages got."""
    found, answers = Latencies(), 0
    with running_broker(folder) as (broker, server):
        fill(broker, settings.topics)
        put_for(broker, settings.seconds / 4, settings.rate)
        for _ in range(settings.rounds):
            found.quiet.append(put_for(broker, settings.seconds, settings.rate))
            with OpenPages(server, settings) as pages:
                found.busy.append(put_for(broker, settings.seconds, settings.rate))
            answers += pages.answers
            if pages.failures:
                raise SystemExit(f"{pages.failures} of {pages.answers} answers were failures")
    return found, answers


def main() -> None:
    """Measure, and print the percentiles and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="pairs of rounds, default %(default)s")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round, default %(default)s")
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
    quiet, busy = (list(chain.from_iterable(rounds)) for rounds in (found.quiet, found.busy))
    for name, values in (("without", quiet), ("with", busy)):
        shown = "  ".join(f"p{part * 100:g} {percentile(values, part) * 1000:7.2f} ms" for part in (0.5, 0.9, 0.99))
        print(f"{name:8} {len(values):6} puts  {shown}")
    ratios = [percentile(b, 0.99) / percentile(a, 0.99) for a, b in zip(found.quiet, found.busy, strict=True)]
    print(f"p99 with / without: {percentile(busy, 0.99) / percentile(quiet, 0.99):.3f} of all puts, "
          f"{statistics.median(ratios):.3f} the median of {len(ratios)} pairs of rounds")  # fmt: skip


if __name__ == "__main__":
    main()
