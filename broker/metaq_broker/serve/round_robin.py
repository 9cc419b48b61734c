"""How the connections share the one thread that serves them.

The event loop goes in rounds: it looks which sockets have something, then calls what waits. A connection with much to
do works a quantum of some milliseconds at a time. When the quanta of a round have taken ``ROUND_S`` together, the
others wait in a queue for the next round, first come first served. A connection with little to do does not queue, so a
client with a single put waits for one or two rounds, however many other clients send thousands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

ROUND_S: Final = 0.01
"""Seconds of work after which the connections with much to do wait for the next round."""


CARRIED_S: Final = 0.001
"""Work of earlier rounds that counts for this one, at most: to begin a round costs one of the loop's, so it is not done
for every little piece of work."""


class RoundRobin:
    """The time that is spent in this round, and who waits for the next. Not thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._spent_s = 0.0
        self._announced = False
        self.spent = False
        """Whether the time of this round is spent."""

    def charge(self, seconds: float) -> None:
        """Count time that a connection has worked."""
        self._spent_s += seconds
        self.spent = self._spent_s >= ROUND_S
        if self._spent_s > CARRIED_S and not self._announced:
            self._announce()

    def wait(self, run_quantum: Callable[[], None]) -> None:
        """Call ``run_quantum`` when its time has come, in a later round."""
        self._waiting.append(run_quantum)
        self._announce()

    def _announce(self) -> None:
        if not self._announced:
            self._announced = True
            self._loop.call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._announced = self.spent = False
        self._spent_s = 0.0
        for _ in range(len(self._waiting)):  # who is not done waits for the round behind
            if self.spent:
                break
            self._waiting.popleft()()
        if self._waiting:
            self._announce()
