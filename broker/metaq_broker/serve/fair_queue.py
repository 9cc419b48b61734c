"""Divides the one thread among the connections of all ports: fair queueing by time, in two classes.

The event loop works in rounds: it polls the sockets, then calls waiting connections. A connection with work does it at
once if no other waits and the time of this round, ``ROUND_S``, is not spent. Otherwise it waits for a quantum, in this
round or a later one.

A connection is *heavy* while its last quantum did not suffice for its requests, else *light*. In every round light
connections are served first, for most of the time, so that a client that sends little and waits for the answer does not
wait for clients that request more than they can get, however many these are.

Within a class, each connection has a count of used seconds, which is never less than the count of the connection that
was served last: idle time is not credited. The next quantum goes to the connection with the least count at the end of
that quantum. The more connections of a class wait, the shorter is a quantum, so that all of them are served within
``CYCLE_S`` or little more. A command that takes longer than a quantum is not interrupted, but counts.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Final

from metaq_broker.per_loop import PerLoop

ROUND_S: Final = 0.01
"""Seconds of work after which connections wait for the next round."""

LIGHT_S: Final = 0.008
"""Seconds of a round after which light connections wait for the next one, if heavy ones wait."""

QUANTUM_S: Final = 0.005
"""Seconds that a connection may work before others are served."""

QUANTUM_S_MIN: Final = 0.0002
"""The same if very many connections wait."""

CYCLE_S: Final = 0.1
"""Seconds in which all waiting connections of a class are served, if a quantum can be shortened that much."""

CARRIED_S: Final = 0.001
"""Limit on the work of earlier rounds that counts for this one: a new round costs an iteration of the loop, so it is
not begun for every small piece of work.
"""


ALONE_S: Final = 0.1
"""A client is alone when no other has had anything to do for so long."""


class _Class:
    """The waiting connections of one class."""

    __slots__ = ("_numbers", "served_s", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[float, int, float, Callable[[float], None]]] = []  # a heap
        self._numbers = itertools.count()
        self.served_s = 0.0
        """The count of the connection that was served last, before its quantum. No connection counts as less."""

    @property
    def quantum_s(self) -> float:
        """Seconds of the next quantum."""
        return max(QUANTUM_S_MIN, min(QUANTUM_S, CYCLE_S / (len(self.waiting) + 1)))

    def add(self, used_s: float, needed_s: float, run_quantum: Callable[[float], None]) -> None:
        used_s = max(used_s, self.served_s)
        heapq.heappush(self.waiting, (used_s + needed_s, next(self._numbers), used_s, run_quantum))

    def serve_next(self) -> None:
        """Serve the connection with the least count at the end of its quantum."""
        quantum_s = self.quantum_s
        _, _, used_s, run_quantum = heapq.heappop(self.waiting)
        self.served_s = max(self.served_s, used_s)
        run_quantum(quantum_s)


class FairQueue(PerLoop):
    """The time spent in this round, and the waiting connections. One for each event loop: ``FairQueue.of``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.light, self.heavy = _Class(), _Class()
        self._spent_s = 0.0
        self._client, self._client_since = 0, -math.inf
        self._announced = False
        self.spent = False
        """Whether the time of this round is spent."""

    @property
    def free(self) -> bool:
        """Whether a connection may work now: no other waits, and the time of this round is not spent."""
        return not (self.spent or self.light.waiting or self.heavy.waiting)

    def charge(self, began: float, ended: float, client: int) -> None:
        """Count that the connection with this number has worked between two moments of the loop's time."""
        if client != self._client:
            self._client, self._client_since = client, ended
        self._spent_s += ended - began
        self.spent = self._spent_s >= ROUND_S
        if self._spent_s > CARRIED_S and not self._announced:
            self._announce()

    def has_one_client(self) -> bool:
        """Say whether one connection at most has worked in the last ``ALONE_S``."""
        return self._loop.time() - self._client_since >= ALONE_S

    def wait(self, used_s: float, run_quantum: Callable[[float], None], *, heavy: bool, little: bool) -> None:
        """Call ``run_quantum`` with the length of the quantum, when the connection is served.

        ``little``: it probably needs only a fraction of a quantum.
        """
        (self.heavy if heavy else self.light).add(used_s, 0.0 if little else QUANTUM_S, run_quantum)
        self._announce()

    def _announce(self) -> None:
        if not self._announced:
            self._announced = True
            self._loop.call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._announced = self.spent = False
        self._spent_s = 0.0
        try:
            self._serve(self.light, LIGHT_S if self.heavy.waiting else ROUND_S)
            self._serve(self.heavy, ROUND_S)
        finally:
            if self.light.waiting or self.heavy.waiting:
                self._announce()

    def _serve(self, waiting: _Class, end_s: float) -> None:
        """Serve waiting connections until ``end_s`` seconds of the round are spent, but at least one."""
        for number in range(len(waiting.waiting)):
            if number and self._spent_s >= end_s:
                break
            waiting.serve_next()
