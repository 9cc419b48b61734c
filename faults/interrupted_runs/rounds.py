"""A consumer calls ``run``, is interrupted at a random moment, and calls it again.

The interruption is a signal that raises ``KeyboardInterrupt`` anywhere in the program, a handler that raises
``KeyboardInterrupt`` or ``SystemExit``, or, with asyncio, a cancelled task. After some rounds the consumer is closed,
and another one of its group continues.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from types import FrameType
from typing import Any, Final

from faults.interrupted_runs.checker import Broken, Sequence
from metaq import AsyncMetaQ, AsyncRocketMQ, MetaQ, RocketMQ
from metaq.model import Partition
from metaq.testing.broker_process import BrokerProcess

CLIENTS: Final[dict[str, Any]] = {
    "MetaQ": MetaQ,
    "AsyncMetaQ": AsyncMetaQ,
    "RocketMQ": RocketMQ,
    "AsyncRocketMQ": AsyncRocketMQ,
}
PARTITIONS: Final = 2
ROUNDS_OF_A_CONSUMER: Final = 5
HANDLER_S: Final = 0.002
ROUND_S: Final = 0.05
DEADLINE_S: Final = 120.0
"""Time for the messages that are left after the last round, in seconds."""
_INTERRUPTS: Final = (KeyboardInterrupt, SystemExit)


@dataclass
class Tally:
    """The results for one client class."""

    client: str
    rounds: int
    handled: int
    repeated: int

    def __str__(self) -> str:
        return f"{self.client}: {self.rounds} rounds, {self.handled} messages, 0 skipped, {self.repeated} repeated"


class Rounds:
    """The rounds of one client, whose class has the name ``client``. It must run in the main thread."""

    def __init__(self, broker: BrokerProcess, client: str, rounds: int, random: Random) -> None:
        self._class, self._is_async = CLIENTS[client], client.startswith("Async")
        self._is_rocketmq = "RocketMQ" in client
        self._cluster = broker.name_servers if self._is_rocketmq else broker.cluster
        self._client, self._rounds, self._random = client, rounds, random
        self._topic = f"interrupted-{client}-{os.urandom(4).hex()}"
        self._each = rounds * 8
        self._sequence = Sequence()
        self._broken: Broken | None = None
        self._options: dict[str, Any] = {"poll_max_s": 0.05}

    def run(self) -> Tally:
        """Send the messages, and have them handled.

        Raises:
            Broken: A message was skipped, or one was repeated that was not being handled.
        """
        self._send()
        if self._is_async:
            asyncio.run(self._run_async())
        else:
            self._run()
        if self._broken is not None:
            raise self._broken
        missing = PARTITIONS * self._each - self._sequence.handled
        if missing:
            raise Broken(f"{missing} messages were never handed out")
        if self._sequence.repeated > self._rounds * PARTITIONS:
            raise Broken(f"{self._sequence.repeated} messages were repeated in {self._rounds} rounds")
        return Tally(self._client, self._rounds, self._sequence.handled, self._sequence.repeated)

    def _send(self) -> None:
        with CLIENTS[self._client.removeprefix("Async")](self._cluster) as mq:
            for index in range(PARTITIONS):
                where = Partition("metaq", index) if self._is_rocketmq else Partition(0, index)
                mq.producer().send_many(self._topic, [b"%d" % n for n in range(self._each)], partition=where)

    def _note(self, message: Any) -> float:
        """Check a message; return the duration of its handler in seconds."""
        try:
            self._sequence.note(message.partition, int(message.data))
        except Broken as broken:  # raised in a handler, it would count as a refusal of the message
            self._broken = self._broken or broken
        return self._random.random() * HANDLER_S

    @property
    def _is_done(self) -> bool:
        return self._sequence.handled == PARTITIONS * self._each

    def _shapes(self) -> Iterator[tuple[bool, int, int]]:
        """Yield whether a consumer acknowledges automatically, its number of workers, and the number of rounds."""
        for begun in range(0, self._rounds, ROUNDS_OF_A_CONSUMER):
            rounds = min(ROUNDS_OF_A_CONSUMER, self._rounds - begun)
            yield self._random.random() < 0.7, self._random.choice((1, 1, 2)), rounds

    # threads

    def _run(self) -> None:
        with self._class(self._cluster) as mq:
            for auto_ack, workers, rounds in self._shapes():
                with mq.consumer(self._topic, [self._topic], auto_ack=auto_ack, **self._options) as consumer:
                    for _ in range(0 if self._broken else rounds):
                        self._round(consumer, auto_ack, workers)
            with mq.consumer(self._topic, [self._topic], **self._options) as consumer:
                end_s = time.monotonic() + DEADLINE_S
                while not (self._is_done or self._broken) and time.monotonic() < end_s:
                    for message in consumer.fetch(timeout=0.2):
                        self._note(message)

    def _round(self, consumer: Any, auto_ack: bool, workers: int) -> None:
        raises_at = self._random.randrange(1, 20) if workers > 1 or self._random.random() < 0.5 else 0
        count = 0

        def handle(message: Any) -> None:
            nonlocal count
            count += 1
            time.sleep(self._note(message))
            if count == raises_at or self._is_done:
                raise self._random.choice(_INTERRUPTS)
            if not auto_ack:
                message.ack()

        with suppress(KeyboardInterrupt, SystemExit), _alarm(0.0 if raises_at else self._random.random() * ROUND_S):
            consumer.run(handle, workers)

    # tasks

    async def _run_async(self) -> None:
        async with self._class(self._cluster) as mq:
            for auto_ack, workers, rounds in self._shapes():
                async with mq.consumer(self._topic, [self._topic], auto_ack=auto_ack, **self._options) as consumer:
                    for _ in range(0 if self._broken else rounds):
                        await self._round_async(consumer, auto_ack, workers)
            async with mq.consumer(self._topic, [self._topic], **self._options) as consumer:
                end_s = time.monotonic() + DEADLINE_S
                while not (self._is_done or self._broken) and time.monotonic() < end_s:
                    for message in await consumer.fetch(timeout=0.2):
                        self._note(message)

    async def _round_async(self, consumer: Any, auto_ack: bool, workers: int) -> None:
        async def handle(message: Any) -> None:
            await asyncio.sleep(self._note(message))
            if not auto_ack:
                message.ack()

        running = asyncio.create_task(consumer.run(handle, workers))
        await asyncio.wait([running], timeout=self._random.random() * ROUND_S)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` in this thread after so many seconds, anywhere in the block. 0: never."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
