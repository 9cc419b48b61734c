"""Submitting in a loop: a full window is awaited, and what the sending thread settles is handed to the loop in batches.

A wake-up of a loop from another thread costs several times what a message does, so there is one for all messages that
are settled until the loop looks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from metaq.errors import WindowFull

S = TypeVar("S")
T = TypeVar("T")

LOOK_S: Final = 0.05
"""Longest wait for a settlement: a message may have been settled just before."""


class _Settlements(Generic[S]):
    """What was settled and its loop has not been told of yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self.space: Final = asyncio.Event()
        """Set when something was settled."""
        self._lock = threading.Lock()
        self._settled: list[tuple[asyncio.Future[S], S | None, BaseException | None]] = []

    def add(self, future: asyncio.Future[S], result: S | None, error: BaseException | None) -> None:
        """Have the loop settle ``future``. Any thread may call this."""
        with self._lock:
            is_first = not self._settled
            self._settled.append((future, result, error))
        if is_first:
            with suppress(RuntimeError):  # the loop is closed: nobody awaits any more
                self.loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            settled, self._settled = self._settled, []
        for future, result, error in settled:
            if future.done():
                continue  # cancelled meanwhile
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]
            else:
                future.set_exception(error)
        self.space.set()


class LoopFuture(Generic[S]):
    """A future that another thread settles and the loop awaits, as ``awaited``."""

    __slots__ = ("_settlements", "awaited")

    def __init__(self, settlements: _Settlements[S]) -> None:
        self._settlements = settlements
        self.awaited: Final[asyncio.Future[S]] = settlements.loop.create_future()

    def set_running_or_notify_cancel(self) -> bool:
        """Return whether the message is still wanted."""
        return not self.awaited.cancelled()

    def set_result(self, result: S, /) -> None:
        """The message is stored."""
        self._settlements.add(self.awaited, result, None)

    def set_exception(self, exception: BaseException, /) -> None:
        """The message is not stored."""
        self._settlements.add(self.awaited, None, exception)


class AwaitedWindow(Generic[S]):
    """The window of one producer, whose ``enqueue`` raises ``WindowFull`` and never waits.

    With ``waits``, ``put`` waits until there is space; otherwise it raises. Loops may use it one after the other: what
    was submitted in one is settled there, or nowhere if it was closed.
    """

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._settlements: _Settlements[S] | None = None  # made in the loop that awaits first

    def future(self) -> LoopFuture[S]:
        """Return a future of the running loop for a message."""
        return LoopFuture(self._here())

    def _here(self) -> _Settlements[S]:
        loop = asyncio.get_running_loop()
        if self._settlements is None or self._settlements.loop is not loop:
            self._settlements = _Settlements(loop)
        return self._settlements

    async def put(self, enqueue: Callable[[T], object], one: T) -> None:
        """Call ``enqueue``, which takes a message, as soon as the window has space. Raises what it raises."""
        while True:
            try:
                enqueue(one)
                return
            except WindowFull:
                if not self._waits:
                    raise
                await self._settlement()

    async def _settlement(self) -> None:
        """Wait until some message is settled."""
        space = self._here().space
        space.clear()
        try:
            async with asyncio.timeout(LOOK_S):
                await space.wait()
        except TimeoutError:
            return
