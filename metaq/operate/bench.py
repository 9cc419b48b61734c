"""Measures how fast a cluster stores and delivers messages to a program that uses this client.

Each connection is a thread with its own client. The latency of a put runs from when the request was due to its
acknowledgement: with a fixed rate, time spent waiting behind a slow request counts too. The latency of a get is how
long a reader waited for the next ``batch`` messages.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from metaq.client.metaq import MetaQ
from metaq.client.records import Received
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketReceived
from metaq.errors import DataMissing, SendFailed
from metaq.formats.frames import HEADER_BYTES
from metaq.model import Partition
from metaq.net.clock import SYSTEM_CLOCK

STORED_S: Final = 5.0
"""Longest wait until acknowledged messages show in the topic's offsets: Java brokers index them later."""

Connect = Callable[[], MetaQ | RocketMQ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load: ``count`` messages of ``size`` bytes, ``batch`` per request, at most ``rate`` messages a second.

    For gets, ``size`` is ignored, ``batch`` is how many messages are waited for at a time, and ``count`` is ``None`` to
    read everything.
    """

    topic: str
    count: int | None
    size: int = 100
    connections: int = 1
    batch: int = 1
    rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result: ``messages`` acknowledged or read in ``seconds``, for ``cpu_s`` of this process's time.

    ``latencies`` are sorted, in seconds. ``error`` is what ended the run early; ``interrupted``: by Ctrl-C.
    """

    messages: int
    bytes: int
    seconds: float
    cpu_s: float
    latencies: Sequence[float]
    error: Exception | None = None
    interrupted: bool = False

    def percentile(self, percent: float) -> float | None:
        """Return the latency that ``percent`` of the requests did not exceed; ``None`` without any."""
        if not self.latencies:
            return None
        return self.latencies[min(len(self.latencies) - 1, int(len(self.latencies) * percent / 100))]


class BenchProgress:
    """Totals of all connections while they run, and whether they should stop. ``count``: messages to send."""

    def __init__(self, count: int | None) -> None:
        self._lock = threading.Lock()
        self._left = count
        self.stop = threading.Event()
        self.messages = self.bytes = 0
        self.latencies = array("d")
        self.error: Exception | None = None
        self.began_s = SYSTEM_CLOCK.monotonic()

    def take(self, most: int) -> int:
        """Return how many messages to send next, at most ``most``; 0 at the end."""
        with self._lock:
            if self.stop.is_set() or self._left is None:
                return 0
            taken = min(most, self._left)
            self._left -= taken
            return taken

    def done(self, messages: int, size: int, latency_s: float) -> None:
        """Count a request."""
        with self._lock:
            self.messages += messages
            self.bytes += size
            self.latencies.append(latency_s)

    def count(self, messages: int, size: int) -> None:
        """Count the acknowledged messages of a request that failed."""
        with self._lock:
            self.messages += messages
            self.bytes += size

    def failed(self, error: Exception) -> None:
        """Stop all connections; the first error is reported."""
        with self._lock:
            self.error = self.error or error
        self.stop.set()

    def due_s(self, rate: float | None, before: int) -> float:
        """Wait until the message number ``before`` is due, and return that time."""
        now_s = SYSTEM_CLOCK.monotonic()
        if rate is None:
            return now_s
        due_s = self.began_s + before / rate
        if due_s > now_s:
            self.stop.wait(due_s - now_s)
        return due_s


class _Info(Protocol):
    @property
    def partition(self) -> Partition: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def put(connect: Connect, load: Load, progress: BenchProgress | None = None) -> Measured:
    """Send messages, and check that the topic has grown by the number acknowledged.

    Raises:
        TopicNotFound: There is no such topic; others as ``send_many`` before anything is sent.
        DataMissing: Less was stored than was acknowledged.
    """
    if load.count is None:
        raise ValueError("count: expected a number of messages to send")
    with connect() as mq:
        before = sum(info.end for info in _describe(mq, load.topic))
        payload = (b"metaq bench " * (load.size // 12 + 1))[: load.size]
        progress = progress or BenchProgress(load.count)
        measured = _measure(progress, [lambda: _put(connect, load, payload, progress)] * load.connections)
        grown = measured.messages * (HEADER_BYTES + load.size if isinstance(mq, MetaQ) else 1)
        if not (measured.error or measured.interrupted):
            _wait_for(mq, load.topic, before + grown)
    return measured


def _put(connect: Connect, load: Load, payload: bytes, progress: BenchProgress) -> None:
    """Run one sending connection."""
    with connect() as mq:
        producer, sent = mq.producer(), 0
        while (number := progress.take(load.batch)) > 0:
            due_s = progress.due_s(load.rate, sent * load.connections)
            try:
                if number == 1:
                    producer.send(load.topic, payload)
                else:
                    producer.send_many(load.topic, [payload] * number)
            except SendFailed as error:
                acknowledged = sum(one is not None for one in error.sent)
                progress.count(acknowledged, acknowledged * load.size)
                raise
            progress.done(number, number * load.size, SYSTEM_CLOCK.monotonic() - due_s)
            sent += number


def _wait_for(mq: MetaQ | RocketMQ, topic: str, end: int) -> None:
    until_s = SYSTEM_CLOCK.monotonic() + STORED_S
    while (there := sum(info.end for info in _describe(mq, topic))) < end:
        if SYSTEM_CLOCK.monotonic() > until_s:
            raise DataMissing(f"topic {topic}", there, end, "less is stored than was acknowledged")
        SYSTEM_CLOCK.sleep(0.05)


def get(connect: Connect, load: Load, progress: BenchProgress | None = None) -> Measured:
    """Read what the topic holds, and check that no message is missing between the others.

    Raises:
        TopicNotFound: There is no such topic.
    """
    with connect() as mq:
        partitions = [info.partition for info in _describe(mq, load.topic) if info.end > info.start]
    lock, counted = threading.Lock(), progress or BenchProgress(None)

    def next_partition() -> Partition | None:
        with lock:
            return partitions.pop(0) if partitions else None

    return _measure(counted, [lambda: _get(connect, load, next_partition, counted)] * load.connections)


def _get(connect: Connect, load: Load, next_partition: Callable[[], Partition | None], progress: BenchProgress) -> None:
    """Run one reading connection, partition after partition."""
    with connect() as mq:
        while not progress.stop.is_set() and (partition := next_partition()) is not None:
            _read(mq, partition, load, progress)


def _read(mq: MetaQ | RocketMQ, partition: Partition, load: Load, progress: BenchProgress) -> None:
    messages: Iterator[Received | RocketReceived] = iter(mq.browse(load.topic, partitions=[partition]))
    expected: int | None = None
    while not progress.stop.is_set():
        began_s = SYSTEM_CLOCK.monotonic()
        block = list(islice(messages, load.batch))
        if not block:
            return
        waited_s = SYSTEM_CLOCK.monotonic() - began_s
        for message in block:
            if expected is not None and message.offset != expected:
                where = f"{load.topic}/{partition}"
                raise DataMissing(where, expected, message.offset, "the message there was left out")
            expected = message.end
        progress.done(len(block), sum(len(message.data) for message in block), waited_s)
        if load.count is not None and progress.messages >= load.count:
            progress.stop.set()
        progress.due_s(load.rate, progress.messages)


def _describe(mq: MetaQ | RocketMQ, topic: str) -> Sequence[_Info]:
    return mq.cluster.describe(topic)


def _measure(progress: BenchProgress, workers: Sequence[Callable[[], None]]) -> Measured:
    """Run the workers side by side until they are done, or Ctrl-C."""

    def run(worker: Callable[[], None]) -> None:
        try:
            worker()
        except Exception as error:  # a client refuses a message that is too large with ``ValueError``
            progress.failed(error)

    threads = [threading.Thread(target=run, args=[worker], name="metaq-bench", daemon=True) for worker in workers]
    interrupted, cpu = False, os.times()
    progress.began_s = SYSTEM_CLOCK.monotonic()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        interrupted = True
        progress.stop.set()
    ended_s, used = SYSTEM_CLOCK.monotonic(), os.times()
    return Measured(
        messages=progress.messages,
        bytes=progress.bytes,
        seconds=ended_s - progress.began_s,
        cpu_s=used.user + used.system - cpu.user - cpu.system,
        latencies=sorted(progress.latencies),
        error=progress.error,
        interrupted=interrupted,
    )
