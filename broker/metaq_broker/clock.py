"""The only source of time: all code that needs the time takes a ``Clock``, so that tests can control it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since 1970. The clock may jump in both directions."""
        return time.time_ns() // 1_000_000

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """Returns seconds that never decrease; only differences have a meaning."""

    since_boot: Callable[[], float] = staticmethod(partial(time.clock_gettime, _BOOTTIME))
    """Returns seconds that never decrease, including sleep of the machine if the system counts it."""


class ManualClock(Clock):
    """A clock that changes only on request. ``now`` is wall-clock milliseconds."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        """Return the seconds by which the clock was advanced."""
        return self._monotonic

    def since_boot(self) -> float:
        return self._monotonic

    def advance(self, ms: int) -> None:
        """Advance both clocks by ``ms`` milliseconds.

        Raises:
            ValueError: ``ms`` is negative; see ``set_now_ms`` for a wall clock that jumps back.
        """
        if ms < 0:
            raise ValueError(f"cannot advance by {ms} ms: time does not run backwards")
        self._now_ms += ms
        self._monotonic += ms / 1000

    def set_now_ms(self, now_ms: int) -> None:
        """Set the wall clock alone, as an operator or NTP would; the monotonic clock does not change."""
        self._now_ms = now_ms
