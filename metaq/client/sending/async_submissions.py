"""Submitting from an event loop: a full window is awaited, and the sending thread passes settled batches to the loop.

Waking an event loop from another thread costs several times as much as a message does. One wake-up therefore covers all
messages that are settled before the loop runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from metaq.client.sending.batches import MessageBatch
from metaq.client.sending.submissions import Submissions
from metaq.errors import WindowFull

P = TypeVar("P")
S = TypeVar("S")

LOOK_S: Final = 0.05
"""Longest wait for a wake-up: a message may have been settled just before the wait began."""


class _Settlements(Generic[P, S]):
    """Batches that are settled and that the loop has not processed yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self.space: Final = asyncio.Event()
        """Set when something was settled."""
        self._lock = threading.Lock()
        self._settled: list[MessageBatch[P, S]] = []

    def settled(self, batch: MessageBatch[P, S]) -> None:
        """Have the loop settle the futures of a batch. Thread-safe."""
        with self._lock:
            is_first = not self._settled
            self._settled.append(batch)
        if is_first:
            with suppress(RuntimeError):  # the loop is closed: no future can be awaited any more
                self.loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            settled, self._settled = self._settled, []
        for batch in settled:
            _settle_awaited(batch)
        self.space.set()


def _settle_awaited(batch: MessageBatch[Any, S]) -> None:
    assert batch.outcomes is not None
    for row, future in batch.awaited:
        if future.done():
            continue  # cancelled
        found = batch.outcomes[row]
        if found is not None:
            future.set_result(found)
        else:
            future.set_exception(batch.failure_of(row))
    batch.awaited.clear()


class AwaitedWindow(Generic[P, S]):
    """The window of one asyncio producer. ``submissions`` must raise ``WindowFull`` instead of waiting.

    ``waits``: wait for space instead of raising ``WindowFull``. Several loops may use it one after the other: a future
    belongs to the loop in which its message was submitted.
    """

    def __init__(self, submissions: Submissions[Any, P, S], *, waits: bool) -> None:
        self._submissions, self._waits = submissions, waits
        self._settlements: _Settlements[P, S] | None = None  # made in the first loop that submits or waits for space

    def offer(self, topic: str, queue: Hashable, message: P, data_bytes: int) -> asyncio.Future[S] | None:
        """Return the message's future; ``None`` if the window is full and ``waits`` is set. Raises as
        ``Submissions.put``.
        """
        loop = self._here().loop
        try:
            batch, row = self._submissions.put(topic, queue, message, data_bytes)
        except WindowFull:
            if not self._waits:
                raise
            return None
        future: asyncio.Future[S] = loop.create_future()
        batch.awaited.append((row, future))  # in the loop's thread, as settling: nothing is missed
        return future

    async def put(self, topic: str, queue: Hashable, message: P, data_bytes: int) -> asyncio.Future[S]:
        """Take a message as soon as the window has space, and return its future.

        Raises:
            WindowFull: The window had no space within the producer's ``max_block_s``.
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
    settlements.space.clear()
    try:
        async with asyncio.timeout(LOOK_S):
            await settlements.space.wait()
    except TimeoutError:
        return
