"""Submitting in a loop: a full window is awaited, and a future becomes one of asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

from metaq.errors import WindowFull

S = TypeVar("S")

LOOK_S: Final = 0.05
"""Longest wait for a settlement: a message may have been settled just before."""


class AwaitedWindow(Generic[S]):
    """The window of one producer, whose ``submit`` raises ``WindowFull`` and never waits.

    With ``waits``, ``submit`` here waits until there is space; otherwise it raises.
    """

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._settled: asyncio.Event | None = None  # made in the loop that awaits first

    async def submit(self, submit: Callable[[], Future[S]]) -> asyncio.Future[S]:
        """Call ``submit``, which takes a message, as soon as the window has space. Raises what it raises."""
        while True:
            try:
                sent = submit()
                break
            except WindowFull:
                if not self._waits:
                    raise
                await self._settlement()
        future = asyncio.wrap_future(sent)
        future.add_done_callback(self._note_settled)
        return future

    async def _settlement(self) -> None:
        """Wait until some message is settled."""
        if self._settled is None:
            self._settled = asyncio.Event()
        self._settled.clear()
        try:
            async with asyncio.timeout(LOOK_S):
                await self._settled.wait()
        except TimeoutError:
            return

    def _note_settled(self, future: asyncio.Future[S]) -> None:
        if self._settled is not None:
            self._settled.set()
