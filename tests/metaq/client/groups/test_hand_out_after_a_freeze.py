"""A process that was frozen hands nothing out of partitions that may have become another consumer's meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
from local_servers import broker_thread

from metaq import AsyncRocketMQ, RocketMQ
from metaq.client.rocketmq.groups.locks import VALID_S, MemberLocks
from metaq.errors import ConnectionFailed
from metaq.model import Address, Partition, TopicPartition
from metaq.testing.manual_clock import ManualClock
from metaq.testing.memory_server import MemoryServer
from metaq.testing.ports import free_port

FROZEN_S = 165.0
LOOKS = 3
"""How often a reader looks in vain before the test believes that it hands nothing out."""

Make = Callable[[str], Any]


class Frozen:
    """The clock of a consumer that jumps, and the end of what it has proven, which does not."""

    def __init__(self) -> None:
        self.jumped_s, self.is_proven, self.looks = 0.0, True, 0
        self._until_s = time.monotonic() + 60
        self.stop: Callable[[], None] = lambda: None

    def thaw(self) -> None:
        self.jumped_s = FROZEN_S

    def monotonic(self) -> float:
        return time.monotonic() + self.jumped_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def until_s(self, where: TopicPartition) -> float:
        if not self.jumped_s or not self.is_proven:
            return self._until_s
        self.looks += 1
        if self.looks == LOOKS:
            self.stop()
        return self._until_s

    def of(self, consumer: Any) -> Any:
        """Have ``consumer`` go by this clock."""
        consumer._core.clock, consumer._state.until_s, self.stop = self, self.until_s, consumer.stop
        return consumer


@pytest.fixture(params=["metaq", "rocketmq"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes a client of a cluster with 20 messages in one partition."""
    texts = [str(number) for number in range(20)]
    if request.param == "metaq":
        server: MemoryServer = request.getfixturevalue("metaq_memory")
        server.client().producer().send_many("orders", texts, partition=Partition(0, 0))
        yield lambda kind: server.client() if kind == "threads" else server.async_client()
        return
    port = free_port()
    section = f"[rocketmq]\nenabled=true\nport={port}\nbrokerName=broker-a\nbrokerIP1=127.0.0.1\n"
    with broker_thread(tmp_path / "broker", f"[topic=*]\n{section}"):
        name_server = f"127.0.0.1:{port}"
        with RocketMQ(name_server) as mq:
            mq.producer().send_many("orders", texts, partition=Partition("broker-a", 0))
        yield lambda kind: RocketMQ(name_server) if kind == "threads" else AsyncRocketMQ(name_server)


def _until_the_second(seen: list[str], clock: Frozen) -> Callable[[Any], None]:
    def handle(message: Any) -> None:
        seen.append(message.data.decode())
        if len(seen) == 2:
            clock.thaw()
        elif len(seen) > 4:
            clock.stop()

    return handle


def iterate(consumer: Any, handle: Callable[[Any], None]) -> None:
    for message in consumer:
        handle(message)


def fetch(consumer: Any, handle: Callable[[Any], None]) -> None:
    while not consumer._stopped:
        for message in consumer.fetch(1, timeout=0.05):
            handle(message)


def fetch_many(consumer: Any, handle: Callable[[Any], None]) -> None:
    for message in consumer.fetch(2, timeout=60):
        handle(message)
    while not consumer._stopped:
        for message in consumer.fetch(timeout=0.05):
            handle(message)


def run(consumer: Any, handle: Callable[[Any], None]) -> None:
    consumer.run(handle)


def run_workers(consumer: Any, handle: Callable[[Any], None]) -> None:
    consumer.run(handle, workers=2)


def kept(consumer: Any, handle: Callable[[Any], None]) -> None:
    """What an interrupted call had taken is handed out later, too."""
    found: list[Any] = []
    while len(found) < 2:
        found += consumer.fetch(1, timeout=60)
    for message in found:
        handle(message)
    consumer._handed.clear()
    consumer._kept = found
    fetch(consumer, handle)


@pytest.mark.parametrize("way", [iterate, fetch, fetch_many, run, run_workers, kept])
def test_threads(make: Make, way: Callable[[Any, Callable[[Any], None]], None]) -> None:
    clock, seen = Frozen(), list[str]()
    with make("threads") as mq, clock.of(mq.consumer("g", ["orders"], poll_max_s=0.05)) as consumer:
        way(consumer, _until_the_second(seen, clock))
    assert seen == ["0", "1"]


async def iterate_async(consumer: Any, handle: Callable[[Any], Awaitable[None]]) -> None:
    async for message in consumer:
        await handle(message)


async def fetch_async(consumer: Any, handle: Callable[[Any], Awaitable[None]]) -> None:
    while not consumer._stopped:
        for message in await consumer.fetch(1, timeout=0.05):
            await handle(message)


async def run_async(consumer: Any, handle: Callable[[Any], Awaitable[None]]) -> None:
    await consumer.run(handle)


async def run_workers_async(consumer: Any, handle: Callable[[Any], Awaitable[None]]) -> None:
    await consumer.run(handle, workers=2)


@pytest.mark.parametrize("way", [iterate_async, fetch_async, run_async, run_workers_async])
def test_asyncio(make: Make, way: Callable[[Any, Callable[[Any], Awaitable[None]]], Awaitable[None]]) -> None:
    clock, seen = Frozen(), list[str]()

    async def main() -> None:
        note = _until_the_second(seen, clock)

        async def handle(message: Any) -> None:
            note(message)

        async with make("asyncio") as mq, clock.of(mq.consumer("g", ["orders"], poll_max_s=0.05)) as consumer:
            await way(consumer, handle)

    asyncio.run(main())
    assert seen == ["0", "1"]


def test_it_goes_on_once_the_partition_is_proven_to_be_its_own(make: Make) -> None:
    clock, found = Frozen(), list[Any]()
    with make("threads") as mq, clock.of(mq.consumer("g", ["orders"], poll_max_s=0.05)) as consumer:
        while not found:
            found += consumer.fetch(1, timeout=1)
        clock.thaw()
        clock.stop = lambda: None
        assert consumer.fetch(timeout=0.1) == []
        consumer._state.until_s = lambda where: inf
        while len(found) < 20:
            found += consumer.fetch(timeout=1)
    assert [one.data.decode() for one in found] == [str(number) for number in range(20)]


QUEUE = TopicPartition("orders", Partition("broker-a", 0))


class Brokers:
    """Grants every lock, or does not answer."""

    group = "g"
    away = False

    def lock(self, broker_name: str, queues: list[TopicPartition]) -> set[TopicPartition]:
        if self.away:
            raise ConnectionFailed(Address("127.0.0.1", 1), "lock", "refused")
        return set(queues)


def test_a_lock_counts_from_when_it_was_asked_for() -> None:
    clock, brokers = ManualClock(), Brokers()
    locks = MemberLocks(brokers, clock)  # type: ignore[arg-type]
    assert locks.until_s(QUEUE) <= 0
    assert locks.lock([QUEUE]) == {QUEUE}
    assert locks.until_s(QUEUE) == clock.monotonic() + VALID_S
    brokers.away = True
    clock.advance(20)
    assert locks.renew([QUEUE]) == {QUEUE}
    assert locks.until_s(QUEUE) == clock.monotonic() + VALID_S - 20, "nobody has confirmed it"
    brokers.away = False
    clock.advance(FROZEN_S)
    assert locks.renew([QUEUE]) == set()
    assert locks.until_s(QUEUE) <= 0
