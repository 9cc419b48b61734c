"""Steps of the event loop's work, and what is better done once at the end of one than for each of many things in it.

Sends that arrive together are stored together, replies that become ready together are sent together. Who knows that
much may come (a look at all sockets, the completion of syncs) is a step: a ``with``. What is left for its end is done
then, and what that leaves behind it, too: messages are stored, then acknowledged, then the answers are sent. Outside of
steps it is done in the next round of the loop, which costs one more look at the sockets.

It also notes which client sent last, so that who could do better for a single client knows whether there is one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary, proxy

PASSES_MAX: Final = 4
"""At the end of a step, what was left then is done, and so on, so often. The rest waits for the next round."""


class LoopStep:
    """One for each event loop: ``LoopStep.of``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: asyncio.AbstractEventLoop = proxy(loop)  # else it would keep its key in the table below alive
        self._left: list[Callable[[], None]] = []
        self._depth = 0
        self._client = 0
        self._client_since = -math.inf

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> LoopStep:
        """Return the one of a loop."""
        known = _STEPS.get(loop)
        if known is None:
            known = _STEPS[loop] = cls(loop)
        return known

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at the end of the step that is under way, or in the next round of the loop. Never at once.

        An error that it raises is reported to the loop, and the others are called all the same.
        """
        if not self._left and not self._depth:
            self._loop.call_soon(self._end)
        self._left.append(callback)

    def came_from(self, client: int) -> None:
        """Take note that the client with this number sent something."""
        if client != self._client:
            self._client, self._client_since = client, self._loop.time()

    def has_one_client(self, seconds: float) -> bool:
        """Say whether one client at most has sent anything in the last ``seconds``."""
        return self._loop.time() - self._client_since >= seconds

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._left and not self._depth:
            self._end()

    def _end(self) -> None:
        self._depth += 1  # what is left meanwhile is for the next pass
        try:
            for _ in range(PASSES_MAX):
                left, self._left = self._left, []
                for callback in left:
                    try:
                        callback()
                    except Exception as failure:
                        self._failed(failure)
                if not self._left:
                    break
        finally:
            self._depth -= 1
            if self._left:
                self._loop.call_soon(self._end)

    def _failed(self, failure: Exception) -> None:
        context = {"message": "what was left for the end of a step failed", "exception": failure}
        self._loop.call_exception_handler(context)


_STEPS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, LoopStep]] = WeakKeyDictionary()
