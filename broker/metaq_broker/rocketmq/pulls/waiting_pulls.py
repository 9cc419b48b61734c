"""Pulls that wait for a message: woken when there is one, answered at their deadline, dropped with their connection.

Their number is limited, for each connection and in total; further pulls are answered at once. In total, one with a
large filter counts for several.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from metaq_broker.rocketmq.messages.message_store import MessageStore
from metaq_broker.rocketmq.session import Call, RemotingSession

WOKEN_AT_ONCE_MAX: Final = 64
"""Pulls of one queue that are answered before the event loop serves others."""

_ENDED_MAX: Final = 1024
"""Deadlines of pulls that ended, beyond as many as wait, before they are swept out."""


@dataclass(slots=True, eq=False)
class WaitingPull:
    """A waiting pull. ``resume`` is called when there is more to read; it returns whether the pull was answered.

    ``expire`` is called at the deadline (a time of the event loop) and answers it.
    """

    call: Call
    topic: str
    queue: int
    deadline: float
    resume: Callable[[], bool]
    expire: Callable[[], None]
    weight: int = 1
    is_over: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class _Queue:
    """The pulls that wait for one queue, oldest first.

    ``is_woken_again``: while they were resumed there was more to read, which the first ones have not looked at.
    """

    pulls: dict[WaitingPull, None]
    end_watch: Callable[[], None]
    is_waking: bool = False
    is_woken_again: bool = False


class WaitingPulls:
    """For the event loop that runs."""

    def __init__(self, store: MessageStore, held_max: int, per_connection_max: int) -> None:
        self._store = store
        self._held_max, self._per_connection_max = held_max, per_connection_max
        self._loop = asyncio.get_running_loop()
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._sessions: dict[RemotingSession, set[WaitingPull]] = {}
        self._deadlines: list[tuple[float, int, WaitingPull]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._weight = 0
        self.held = 0
        """Pulls that wait."""

    def has_space_for(self, session: RemotingSession, weight: int = 1) -> bool:
        """Return whether one more pull of a connection, which counts for ``weight``, may wait."""
        if self._stopped or self._weight + weight > self._held_max:
            return False
        return len(self._sessions.get(session, ())) < self._per_connection_max

    def hold(self, pull: WaitingPull) -> None:
        """Hold a pull until it is answered. The caller has checked that there is nothing to read now."""
        key = pull.topic, pull.queue
        queue = self._queues.get(key)
        if queue is None:
            end_watch = self._store.watch(pull.topic, pull.queue, lambda: self.wake(*key))
            queue = self._queues[key] = _Queue({}, end_watch)
        queue.pulls[pull] = None
        self._sessions.setdefault(pull.call.session, set()).add(pull)
        self.held += 1
        self._weight += pull.weight
        heapq.heappush(self._deadlines, (pull.deadline, next(self._numbers), pull))
        self._set_timer()

    def connection_lost(self, session: RemotingSession) -> None:
        for pull in list(self._sessions.get(session, ())):
            self._end(pull)
            pull.call.leave_unanswered()

    def stop(self) -> None:
        """Answer all pulls now, and hold no more."""
        self._stopped = True
        for queue in list(self._queues.values()):
            for pull in list(queue.pulls):
                self._end(pull)
                pull.expire()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self, topic: str, number: int) -> None:
        """Resume the pulls of a queue that has more messages, or lost them all."""
        key = topic, number
        queue = self._queues.get(key)
        if queue is None:
            return
        queue.is_woken_again = queue.is_waking
        if not queue.is_waking:
            queue.is_waking = True
            self._resume(key, queue, list(queue.pulls))

    def _resume(self, key: tuple[str, int], queue: _Queue, pulls: list[WaitingPull]) -> None:
        """Resume pulls, some now, the others when the loop has served others, too."""
        for pull in pulls[:WOKEN_AT_ONCE_MAX]:
            if not pull.is_over and pull.resume():
                self._end(pull)
        rest = pulls[WOKEN_AT_ONCE_MAX:]
        if not rest and queue.is_woken_again:
            queue.is_woken_again, rest = False, list(queue.pulls)
        queue.is_waking = bool(rest)
        if rest:
            self._loop.call_soon(self._resume, key, queue, rest)

    def _end(self, pull: WaitingPull) -> None:
        if pull.is_over:
            return
        pull.is_over = True
        self.held -= 1
        self._weight -= pull.weight
        key = pull.topic, pull.queue
        queue = self._queues[key]
        del queue.pulls[pull]
        if not queue.pulls:
            queue.end_watch()
            del self._queues[key]
        of_session = self._sessions[pull.call.session]
        of_session.discard(pull)
        if not of_session:
            del self._sessions[pull.call.session]
        if len(self._deadlines) > 2 * self.held + _ENDED_MAX:
            self._deadlines = [each for each in self._deadlines if not each[2].is_over]
            heapq.heapify(self._deadlines)

    def _set_timer(self) -> None:
        while self._deadlines and self._deadlines[0][2].is_over:
            heapq.heappop(self._deadlines)
        if not self._deadlines:
            return
        first = self._deadlines[0][0]
        if self._timer is not None and self._timer.when() <= first:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(first, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._deadlines and (self._deadlines[0][2].is_over or self._deadlines[0][0] <= now):
            pull = heapq.heappop(self._deadlines)[2]
            if not pull.is_over:
                self._end(pull)
                pull.expire()
        self._set_timer()
