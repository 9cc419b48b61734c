"""The end of a step of the event loop: what arrived together is stored, synced and answered together.

A step is what the loop does at once: it serves all sockets that have bytes, or completes all syncs that have ended.
What is left for its end is done once for all of that, and then what that leaves: messages are stored, then synced, then
answered, then reported. Whatever else calls ``at_end`` gets a step of its own, in the next round of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from metaq_broker.per_loop import PerLoop


class LoopStep(PerLoop):
    """The steps of one event loop, one after the other: ``LoopStep.of``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._left: deque[Callable[[], None]] = deque()
        self._is_open = False

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at the end of this step, after the callbacks added earlier; never at once."""
        if not (self._left or self._is_open):
            self._loop.call_soon(self._end)
        self._left.append(callback)

    def run(self, work: Callable[[], None]) -> None:
        """Call ``work`` as a step: what is left for its end is done before this returns."""
        self._left.appendleft(work)
        self._end()

    def _end(self) -> None:
        self._is_open = True
        left = self._left
        try:
            while left:
                try:
                    left.popleft()()
                except Exception as failure:  # the others are called all the same
                    context = {"message": "a step failed", "exception": failure}
                    self._loop.call_exception_handler(context)
        finally:
            self._is_open = False
            if left:  # a callback was cancelled or interrupted: the others are called in the next round
                self._loop.call_soon(self._end)
