"""Time has one door: everything that asks what time it is takes a ``Clock``, so that tests can move the hands."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since 1970. It may jump in both directions."""
        return time.time_ns() // 1_000_000

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """Returns seconds that only grow; differences are meaningful, the value itself is not."""

    since_boot: Callable[[], float] = staticmethod(partial(time.clock_gettime, _BOOTTIME))
    """Returns seconds that only grow, those included in which the machine slept, where the system counts them."""


class ManualClock(Clock):
    """A clock that stands still until it is moved. ``now`` is wall-clock milliseconds."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        """Return the wall-clock milliseconds that were last set."""
        return self._now_ms

    def monotonic(self) -> float:
        """Return the seconds by which the clock was advanced so far."""
        return self._monotonic

    def since_boot(self) -> float:
        """Return the same."""
        return self._monotonic

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass on both clocks.

        Raises:
            ValueError: ``ms`` is negative; see ``set_now_ms`` for a wall clock that jumps back.
        """
        if ms < 0:
            raise ValueError(f"cannot advance by {ms} ms: time does not run backwards")
        self._now_ms += ms
        self._monotonic += ms / 1000

    def set_now_ms(self, now_ms: int) -> None:
        """Set the wall clock alone, as an operator or NTP would; the monotonic clock does not notice."""
        self._now_ms = now_ms
