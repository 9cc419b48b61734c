"""A broker's link to one name server: pending registrations, and callers that wait for them.

A registration contains all topics or only the changed ones. It contains all at the start, every
``registerNameServerPeriod``, and when the name server may have lost data: after a failed registration, and after a lost
connection. Then the version of the topics is changed, because RocketMQ's name servers accept topics only with a new
version.

Each name server has its own link, so that one that hangs does not delay others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple

from metaq.model import Address

_LOG: Final = logging.getLogger(__name__)

TOGETHER_S: Final = 0.05
"""Shortest pause between two registrations of all topics."""

SHARE: Final = 5
"""Shortest pause between two registrations of all topics, as a multiple of the time that a registration takes."""

AGAIN_S: Final = 1.0
"""Pause before the next registration after one that failed; it doubles, up to the usual period."""

NOTHING: Final = -1

Register = Callable[[Collection[str] | None, int], Awaitable[str | None]]
"""Registers these topics, or all (``None``), at the name server; returns the error. The number is added to the topics'
version.
"""


class _Waiting(NamedTuple):
    """A caller that waits until the name server has the first ``changes`` changes."""

    changes: int
    call: Callable[[], None]


class NameServerLink:
    """Used on one event loop."""

    def __init__(self, address: Address, register: Register, interval_s: float) -> None:
        self._address, self._register, self._interval_s = address, register, interval_s
        self._topics: set[str] = set()
        """Topics that have changed since the last successful registration."""
        self._needs_all = True
        self._doubts = 0
        """How often the name server may have lost data."""
        self._changes, self._known = 0, NOTHING
        self._waiting: list[_Waiting] = []
        self._changed = asyncio.Event()
        self._fault: str | None = None
        self._all_not_before = 0.0

    def change(self, topic: str | None) -> None:
        """Register a changed topic, or all with ``None``."""
        if topic is None:
            self._needs_all = True
        else:
            self._topics.add(topic)
        self._changes += 1
        self._changed.set()

    def connection_ended(self) -> None:
        """The name server may have removed the broker: register again."""
        self._doubt()
        self._changed.set()

    def when_known(self, call: Callable[[], None]) -> bool:
        """Call back when the name server has all changes made so far, or does not answer; return whether it will.

        Returns false if the name server has everything, or did not answer last time.
        """
        if self._fault is not None or self._known >= self._changes:
            return False
        self._waiting.append(_Waiting(self._changes, call))
        return True

    def release(self) -> None:
        """Call back all waiting callers: nothing is registered any more."""
        self._call_back(lambda _waiting: True)

    async def run(self) -> None:
        """Register, until this task is cancelled."""
        loop, again_s = asyncio.get_running_loop(), AGAIN_S
        period_ends = loop.time()
        while True:
            self._needs_all |= loop.time() >= period_ends
            if self._needs_all:
                await asyncio.sleep(self._all_not_before - loop.time())
                period_ends = loop.time() + self._interval_s
            self._changed.clear()
            if self._needs_all or self._topics:
                await self._try(loop)
            if self._fault is not None:
                pause_s = min(again_s, self._interval_s)
                await asyncio.sleep(min(AGAIN_S, pause_s))
                await self._until_a_change(pause_s - AGAIN_S)
                again_s = 2 * pause_s
            else:
                again_s = AGAIN_S
                await self._until_a_change(period_ends - loop.time())

    async def _until_a_change(self, seconds_max: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds_max)):  # wait_for() of Python 3.11 may lose a cancel
                await self._changed.wait()

    async def _try(self, loop: asyncio.AbstractEventLoop) -> None:
        """Register the pending changes; later changes are left for the next time."""
        topics, self._topics = self._topics, set()
        of_all, self._needs_all = self._needs_all, False
        changes, doubts, began = self._changes, self._doubts, loop.time()
        fault = await self._register(None if of_all else topics, doubts)
        if of_all:
            self._all_not_before = loop.time() + max(TOGETHER_S, SHARE * (loop.time() - began))
        if fault is not None:
            self._doubt()
        elif doubts == self._doubts:
            self._known = changes
        self._note(fault)
        self._call_back(lambda waiting: fault is not None or waiting.changes <= self._known)

    def _call_back(self, is_over: Callable[[_Waiting], bool]) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if is_over(each):
                asyncio.get_running_loop().call_soon(each.call)
            else:
                self._waiting.append(each)

    def _doubt(self) -> None:
        self._needs_all, self._known = True, NOTHING
        self._doubts += 1

    def _note(self, fault: str | None) -> None:
        before, self._fault = self._fault, fault
        if fault is None and before is not None:
            _LOG.info("registered with a name server again", extra={"fields": {"nameServer": self._address}})
        elif fault is not None and before is None:
            fields = {"nameServer": self._address, "reason": fault}
            _LOG.warning("not registered with a name server; trying again", extra={"fields": fields})
