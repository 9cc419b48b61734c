"""One name server that a broker registers with: what it has to learn still, and who waits until it knows.

A registration has all topics or, between two of those, only the topics that have changed. It has all at the start,
every ``registerNameServerPeriod``, and when the name server may have forgotten something: after a registration that
failed, and after a connection that ended. Then the version of the topics is another one than before, since RocketMQ's
name servers take topics only with a version that they do not know.

Each name server has a link of its own, so that one that hangs holds up no other.
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
"""Pause before a registration of all topics that follows another one."""

SHARE: Final = 5
"""Between two registrations of all topics pass so many times the time that one takes: it grows with the topics."""

AGAIN_S: Final = 1.0
"""Pause before the next registration after one that failed; it doubles, up to the usual period."""

NOTHING: Final = -1

Register = Callable[[Collection[str] | None, int], Awaitable[str | None]]
"""Registers these topics, or all (``None``), at the name server; returns what went wrong. The number is added to the
version of the topics."""


class _Waiting(NamedTuple):
    """Somebody who waits until the name server knows the first ``changes`` changes."""

    changes: int
    call: Callable[[], None]


class NameServerLink:
    """Used on one event loop."""

    def __init__(self, address: Address, register: Register, interval_s: float) -> None:
        self._address, self._register, self._interval_s = address, register, interval_s
        self._topics: set[str] = set()
        """Those that have changed since the last registration that the name server took."""
        self._needs_all = True
        self._doubts = 0
        """How often the name server may have forgotten something."""
        self._changes, self._known = 0, NOTHING
        self._waiting: list[_Waiting] = []
        self._changed = asyncio.Event()
        self._fault: str | None = None
        self._all_not_before = 0.0

    def change(self, topic: str | None) -> None:
        """Have the name server learn of a topic that changed, of all with ``None``."""
        if topic is None:
            self._needs_all = True
        else:
            self._topics.add(topic)
        self._changes += 1
        self._changed.set()

    def connection_ended(self) -> None:
        """Take note that the name server has forgotten the broker."""
        self._doubt()
        self._changed.set()

    def when_known(self, call: Callable[[], None]) -> bool:
        """Call back once the name server knows what has changed until now, or does not answer; say whether it will.

        It will not where the name server knows everything, or did not answer the last time.
        """
        if self._fault is not None or self._known >= self._changes:
            return False
        self._waiting.append(_Waiting(self._changes, call))
        return True

    def release(self) -> None:
        """Call back those who wait: nothing is registered any more."""
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
        """Register what is to be registered now; what changes meanwhile is for the next time."""
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
        over = [each for each in self._waiting if is_over(each)]
        self._waiting = [each for each in self._waiting if each not in over]
        for waiting in over:
            asyncio.get_running_loop().call_soon(waiting.call)

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
