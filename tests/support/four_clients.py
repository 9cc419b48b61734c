"""The four clients that have consumers of groups, for tests of each: MetaQ's and RocketMQ's, sync and asyncio.

A test is written once, for a consumer whose calls are coroutines; those of the sync ones are wrapped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final

from metaq import AsyncMetaQ, AsyncRocketMQ, MetaQ, RocketMQ
from metaq.model import Partition
from metaq.testing.broker_process import BrokerProcess

CLIENTS: Final = ("MetaQ", "AsyncMetaQ", "RocketMQ", "AsyncRocketMQ")
_CLASSES: Final[dict[str, Any]] = {
    "MetaQ": MetaQ,
    "AsyncMetaQ": AsyncMetaQ,
    "RocketMQ": RocketMQ,
    "AsyncRocketMQ": AsyncRocketMQ,
}
_numbers = itertools.count()

Handler = Callable[[Any], None]


async def outcome_of(result: Any) -> Any:
    """Return what a call of a sync or an asyncio object comes to."""
    return await result if isawaitable(result) else result


@dataclass
class FourClients:
    """One client of ``broker``, whose class is ``name``. Each test has a topic of its own, a group of the same name."""

    broker: BrokerProcess
    name: str

    def __post_init__(self) -> None:
        self.topic = f"topic-{next(_numbers)}"
        self.is_rocketmq = "RocketMQ" in self.name
        self.is_async = self.name.startswith("Async")

    def partition(self, index: int) -> Partition:
        """The partition, or queue, with this index."""
        return Partition("metaq", index) if self.is_rocketmq else Partition(0, index)

    def send(self, *data: bytes, partition: int = 0) -> None:
        """Send messages to a partition of the topic."""
        cluster = self.broker.name_servers if self.is_rocketmq else self.broker.cluster
        with _CLASSES[self.name.removeprefix("Async")](cluster) as mq:
            mq.producer().send_many(self.topic, list(data), partition=self.partition(partition))

    @asynccontextmanager
    async def consumer(self, **options: Any) -> AsyncIterator[Any]:
        """A consumer of the topic."""
        cluster = self.broker.name_servers if self.is_rocketmq else self.broker.cluster
        given = {"poll_max_s": 0.05, "retry_max_s": 0.01} | options
        if self.is_async:
            async with _CLASSES[self.name](cluster) as mq, mq.consumer(self.topic, [self.topic], **given) as made:
                yield made
        else:
            with _CLASSES[self.name](cluster) as mq, mq.consumer(self.topic, [self.topic], **given) as made:
                yield made

    async def run(self, consumer: Any, handler: Handler, workers: int = 1) -> None:
        """Have ``handler`` called by ``run``."""

        async def awaited(message: Any) -> None:
            handler(message)

        await outcome_of(consumer.run(awaited if self.is_async else handler, workers))

    async def run_until_interrupted(self, consumer: Any, handler: Callable[[Any], bool], workers: int = 1) -> None:
        """``run``, until ``handler`` returns true: there, it is interrupted by Ctrl-C, or its task is cancelled."""

        async def cancels(message: Any) -> None:
            if handler(message):
                running.cancel()
                await asyncio.sleep(60)

        def interrupts(message: Any) -> None:
            if handler(message):
                raise KeyboardInterrupt

        if not self.is_async:
            with suppress(KeyboardInterrupt):
                consumer.run(interrupts, workers)
            return
        running = asyncio.create_task(consumer.run(cancels, workers))
        with suppress(asyncio.CancelledError):
            await running

    async def read(self, consumer: Any, way: str, handler: Callable[[Any], bool]) -> None:
        """Have ``handler`` called until it returns true. ``way``: run, run with workers, fetch, iteration."""
        match way:
            case "run" | "run with workers":

                def stops(message: Any) -> None:
                    if handler(message):
                        consumer.stop()

                await self.run(consumer, stops, workers=2 if way == "run with workers" else 1)
            case "fetch":
                ends: list[bool] = []
                while not any(ends):
                    ends += [handler(one) for one in await outcome_of(consumer.fetch(50, timeout=10))]
            case _ if self.is_async:
                async for message in consumer:
                    if handler(message):
                        break
            case _:
                for message in consumer:
                    if handler(message):
                        break
