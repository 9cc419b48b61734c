"""Submitting in a loop: a full window is awaited, and what the sending thread settles is handed to the loop in batches.

A wake-up of a loop from another thread costs several times what a message does, so there is one for all messages that
are settled until the loop looks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from metaq.client.batches import Batch
from metaq.client.futures import awaited_future_of
from metaq.client.submissions import Submissions
from metaq.errors import WindowFull

P = TypeVar("P")
S = TypeVar("S")

LOOK_S: Final = 0.05
"""Longest wait for a settlement: a message may have been settled just before."""


class _Settlements(Generic[P, S]):
    """Batches that are settled and their loop has not been notified of yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self.space: Final = asyncio.Event()
        """Set when something was settled."""
        self._lock = threading.Lock()
        self._settled: list[Batch[P, S]] = []

    def settled(self, batch: Batch[P, S]) -> None:
        """Have the futures of a batch settled, each in its loop. Any thread may call this."""
        others = [loop for loop in batch.awaited if loop is not self.loop]
        with self._lock:
            is_first = not self._settled
            self._settled.append(batch)
        if is_first:
            _call_in(self.loop, self._hand_over)
        for loop in others:
            _call_in(loop, partial(_settle_awaited, batch, loop))

    def _hand_over(self) -> None:
        with self._lock:
            settled, self._settled = self._settled, []
        for batch in settled:
            _settle_awaited(batch, self.loop)
        self.space.set()


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody awaits any more
        loop.call_soon_threadsafe(function)


def _settle_awaited(batch: Batch[Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    for future in batch.awaited.pop(loop, ()):
        future.settle(batch)


class AwaitedWindow(Generic[P, S]):
    """The window of one producer, whose ``submissions`` raise ``WindowFull`` and never wait.

    Without ``waits``, ``WindowFull`` is the caller's. Loops may use it one after the other: what is awaited in one is
    settled there, or nowhere if it was closed.
    """

    def __init__(self, submissions: Submissions[Any, P, S], *, waits: bool) -> None:
        self._submissions, self._waits = submissions, waits
        self._settlements: _Settlements[P, S] | None = None  # made in the loop that submits first, or awaits space

    def offer(self, topic: str, queue: Hashable, message: P, data_bytes: int) -> asyncio.Future[S] | None:
        """Take a message if the window has space, and return its future. Raises as ``Submissions.put``."""
        if self._settlements is None:
            self._here()
        try:
            return awaited_future_of(self._submissions.put(topic, queue, message, data_bytes))
        except WindowFull:
            if not self._waits:
                raise
            return None

    async def put(self, topic: str, queue: Hashable, message: P, data_bytes: int) -> asyncio.Future[S]:
        """As ``offer``, as soon as the window has space.

        Raises:
            WindowFull: It had none within the producer's ``max_block_s``.
        """
        try:
            async with asyncio.timeout(self._submissions.max_block_s):
                while (future := self.offer(topic, queue, message, data_bytes)) is None:
                    await _settlement(self._here())
                return future
        except TimeoutError:
            raise WindowFull(topic, self._submissions.window_bytes) from None

    def _here(self) -> _Settlements[P, S]:
        loop, settlements = asyncio.get_running_loop(), self._settlements
        if settlements is None or settlements.loop is not loop:
            settlements = self._settlements = _Settlements(loop)
            self._submissions.settle_in(settlements)
        return settlements


async def _settlement(settlements: _Settlements[P, S]) -> None:
    """Wait until some message is settled."""
    settlements.space.clear()
    try:
        async with asyncio.timeout(LOOK_S):
            await settlements.space.wait()
    except TimeoutError:
        return
