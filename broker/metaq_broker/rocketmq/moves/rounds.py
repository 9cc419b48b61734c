"""One timer for everything that moves waiting messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Any, Final

from metaq_broker.background import begin_work
from metaq_broker.rocketmq.moves.mover import Mover

_LOG: Final = logging.getLogger(__name__)

Run = Callable[[int], int]
"""Does the work due at a time in ms; returns when to call it again, in ms."""

TICK_MS: Final = 1_000
BLOCKED_S: Final = 0.05
WAIT_MS_MIN: Final = 2
INTERVAL_MS: Final = 60_000


class FaultReports:
    """Limits the log of a recurring fault: the first time, then once a minute. Keys must be few."""

    def __init__(self) -> None:
        self._reported_ms: dict[Hashable, int] = {}
        self._times: dict[Hashable, int] = {}

    def count(self, key: Hashable, now_ms: int) -> int:
        """Count a fault. Return how often it occurred since it was last logged if it is due for logging, else 0."""
        self._times[key] = times = self._times.get(key, 0) + 1
        last_ms = self._reported_ms.get(key)
        if last_ms is not None and last_ms <= now_ms < last_ms + INTERVAL_MS:
            return 0
        self._reported_ms[key] = now_ms
        del self._times[key]
        return times


class Rounds:
    """Calls each ``Run`` when it is due and after ``wake``, on the running event loop, and raises floors.

    ``now_ms`` is a time without jumps of the wall clock. Nothing is called while ``may_run`` is false, such as on a
    slave; it is checked every second.
    """

    def __init__(
        self, mover: Mover[Any], now_ms: Callable[[], int], may_run: Callable[[], bool] = lambda: True
    ) -> None:
        self._mover, self._now_ms, self._may_run = mover, now_ms, may_run
        self._runs: list[Run] = []
        self._timer: asyncio.Handle | None = None
        self._next_tick_ms = 0
        self._reports = FaultReports()
        self._recovering: asyncio.Task[None] | None = None
        self._ready = self._stopped = False

    def add(self, run: Run) -> None:
        self._runs.append(run)

    def start(self) -> None:
        """Recover the moves made before the restart, then begin."""
        self._recovering = begin_work(self._recover(), "moves before the restart")

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._recovering is not None:
            self._recovering.cancel()

    def wake(self) -> None:
        """Call everything in the loop's next iteration."""
        if self._ready and not self._stopped:
            self._schedule(0)

    async def _recover(self) -> None:
        while not self._mover.recover():
            await asyncio.sleep(BLOCKED_S if self._mover.blocked else 0)
        self._ready = True
        self.wake()

    def _schedule(self, wait_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(wait_ms / 1000, self._round) if wait_ms > 0 else loop.call_soon(self._round)

    def _round(self) -> None:
        now_ms = self._now_ms()
        next_ms = now_ms + TICK_MS
        self._timer = None
        if not self._may_run():
            self._schedule(TICK_MS)
            return
        if not now_ms < self._next_tick_ms <= now_ms + TICK_MS:
            self._next_tick_ms = now_ms + TICK_MS
            self._call(self._raise_floors, now_ms)
        for run in self._runs:
            next_ms = min(next_ms, self._call(run, now_ms))
        if self._timer is None and not self._stopped:
            self._schedule(max(next_ms - self._now_ms(), WAIT_MS_MIN))

    def _raise_floors(self, now_ms: int) -> int:
        self._mover.tick()
        return now_ms + TICK_MS

    def _call(self, run: Run, now_ms: int) -> int:
        """Call one; log any error, so that the others continue, and call it again later."""
        try:
            return run(now_ms)
        except Exception as error:
            if times := self._reports.count(run, now_ms):
                _LOG.error("waiting messages were not checked", exc_info=error, extra={"fields": {"times": times}})
            return now_ms + TICK_MS
