"""Measures how long pages of the dashboard take in front of a broker with very many topics, and how puts fare then.

Brokers run with the topics, each with a message. The dashboard is started several times: the time of the first page
after each start, which has to wait for what the dashboard does not know yet, and of each screen afterwards, asked for
again and again with pauses in which answers become old. A producer puts a message at a time meanwhile; its slowest puts
say for how long one answer keeps its broker. With ``--messages``, one topic gets so many, and a search that matches
none of them runs, as a page runs it: how many messages a second it passes, and how long it takes to stop.

A broker counts two open files for each partition, and keeps an eighth of its limit for connections: more topics than
the limit allows (`ulimit -Hn`) are divided among ``--brokers``.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from open_pages import GROUP, TOPIC, fill, percentile, put_for, running_broker

from metaq import MetaQ
from metaq.model import Address

SERVED: Final = re.compile(r".*http://(\S+:\d+)/.*\n")
SCREENS: Final = (
    *("/", "/topics", "/topics?page=100", "/topics?sort=-messages", "/topics?q=77", "/groups", "/clients", "/queries"),
    *(f"/topic?topic={TOPIC}", f"/topic/messages?topic={TOPIC}", f"/group?group={GROUP}", "/replication"),
)
FIRST: Final = ("/", "/topics", f"/topic?topic={TOPIC}", f"/topic/messages?topic={TOPIC}")
"""Screens that are the first page after a start."""
BATCH: Final = 1_000


@dataclass(slots=True)
class Found:
    """Seconds of the first page after a start, and of later ones, by address; of each put meanwhile."""

    first: dict[str, list[float]] = field(default_factory=dict)
    later: dict[str, list[float]] = field(default_factory=dict)
    puts: list[float] = field(default_factory=list)


@contextmanager
def running_dashboard(cluster: str) -> Iterator[Address]:
    """Run a dashboard in addition to the brokers' own; yield its address as soon as it is printed."""
    command = [sys.executable, "-m", "metaq_console", "--cluster", cluster, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            served = SERVED.fullmatch(line := process.stdout.readline())
            if served is None:
                raise SystemExit(f"the dashboard did not get ready: {line}")
            yield Address.parse(served[1])
        finally:
            process.terminate()
            process.wait(60)


def seconds_of(server: Address, path: str) -> float:
    """Return how long a page takes, on a connection of its own."""
    began_s = time.perf_counter()
    text = ask(server, "GET", path).decode()
    took_s = time.perf_counter() - began_s
    if (said := re.search(r'notice bad"[^>]*(?<!hidden)>.*?</', text, re.DOTALL)) is not None:
        raise SystemExit(f"{path}: {said[0]}")
    return took_s


def ask(server: Address, method: str, path: str, body: str | None = None) -> bytes:
    """Return an answer."""
    with contextlib.closing(http.client.HTTPConnection(server.host, server.port, timeout=120)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    if answer.status not in (200, 201, 202):
        raise SystemExit(f"{method} {path}: {answer.status} {text[:300]!r}")
    return text


def measure(broker: Address, cluster: str, starts: int, times: int, pause_s: float) -> Found:
    """Open pages while a producer puts."""
    found, is_over = Found(), threading.Event()

    def produce() -> None:
        while not is_over.is_set():
            found.puts.extend(put_for(broker, 1.0, 200.0))

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for path in FIRST:
            for _ in range(starts):
                with running_dashboard(cluster) as server:
                    found.first.setdefault(path, []).append(seconds_of(server, path))
        with running_dashboard(cluster) as server:
            for number in range(times + 1):
                for path in SCREENS:
                    took_s = seconds_of(server, path)
                    if number:  # not the first request of this page
                        found.later.setdefault(path, []).append(took_s)
                    time.sleep(pause_s)
    finally:
        is_over.set()
        producer.join()
    return found


def search(cluster: str, messages: int) -> None:
    """Fill a topic; search it for what it does not have; stop the search halfway; print how that went."""
    with MetaQ(cluster) as mq:
        producer = mq.producer()
        batch = [f"order {number:09} of a customer, tea and scones, to be paid on delivery" for number in range(BATCH)]
        for _ in range(messages // BATCH):
            producer.send_many("large", batch)
    with running_dashboard(cluster) as server:
        for part in (1.0, 0.5):
            body = {"topic": "large", "contains": "nothing like it", "seconds": 600, "read_max": 100_000_000}
            began_s = time.perf_counter()
            scan = json.loads(ask(server, "POST", "/v1/scans", json.dumps(body)))["scan"]
            while (progress := json.loads(ask(server, "GET", f"/v1/scans/{scan}"))["progress"])["running"]:
                if progress["fraction"] >= part:
                    break
                time.sleep(0.2)
            took_s, stop_s = time.perf_counter() - began_s, time.perf_counter()
            last = json.loads(ask(server, "DELETE", f"/v1/scans/{scan}"))["progress"]
            stop_s = time.perf_counter() - stop_s
            print(
                f"search: {last['read']:,} of {messages:,} messages in {took_s:.1f} s, {last['read'] / took_s:,.0f} a "
                f"second; stopped in {stop_s * 1000:.0f} ms, {last['fraction']:.0%} of it read"
            )


def main() -> None:
    """Measure, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000, help="of all brokers, default %(default)s")
    parser.add_argument("--brokers", type=int, default=2, help="default %(default)s")
    parser.add_argument("--starts", type=int, default=3, help="of the dashboard, for each first page")
    parser.add_argument("--times", type=int, default=5, help="each screen is asked for, default %(default)s")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two pages, default %(default)s")
    parser.add_argument("--messages", type=int, default=0, help="messages to search through; default: no search")
    parser.add_argument("--folder", help="where the messages are; one in memory leaves out the disk's own delays")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-pages-", dir=given.folder)))
        brokers = list[Address]()
        for number in range(given.brokers):
            (own := folder / str(number)).mkdir()
            brokers.append(stack.enter_context(running_broker(own, number))[0])
            fill(brokers[-1], given.topics // given.brokers, f"topic-of-{number}")
        broker, cluster = brokers[0], ",".join(map(str, brokers))
        quiet = put_for(broker, 10.0, 200.0)
        found = measure(broker, cluster, given.starts, given.times, given.pause)
        print(f"{given.topics:,} topics, load {os.getloadavg()[0]:.1f}; milliseconds, median and longest")
        for what, seconds in (("first page after a start", found.first), ("page", found.later)):
            for path, each in seconds.items():
                print(f"{what:24} {path:32} {statistics.median(each) * 1000:6.0f} {max(each) * 1000:6.0f}")
        for what, each in (("puts without", quiet), ("puts meanwhile", found.puts)):
            shown = "  ".join(f"p{part * 100:g} {percentile(each, part) * 1000:.2f}" for part in (0.5, 0.99, 0.999))
            print(f"{what:14} {len(each):6}  {shown}  longest {max(each) * 1000:.1f}")
        if given.messages:
            search(cluster, given.messages)


if __name__ == "__main__":
    main()
