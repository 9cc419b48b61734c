"""The client's only access to time: deadlines and pauses use this clock, so tests can pass a manual one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol


class Clock(Protocol):
    """A monotonic clock, in seconds, that can also pause the calling thread."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Pause for ``seconds``."""


_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The machine's clock. Where the system counts it (Linux), the time for which the machine sleeps passes, too: what
    was proven until some moment is not proven any more when the machine wakes up.
    """

    monotonic: Callable[[], float] = staticmethod(
        time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
    )
    sleep = staticmethod(time.sleep)


SYSTEM_CLOCK: Final[Clock] = SystemClock()

WAIT_S_MIN: Final = 0.001
"""The shortest wait: with a timeout of 0, a socket does not wait but fails at once."""


def wait_s_until(until_s: float, clock: Clock) -> float:
    """Return how long to wait until ``until_s``; at least ``WAIT_S_MIN``."""
    return max(WAIT_S_MIN, until_s - clock.monotonic())


def lock_wait_s(seconds: float | None) -> float | None:
    """Return how long to wait for a lock or a thread; ``None``, without a limit, for the longer waits they refuse."""
    return None if seconds is None or seconds > threading.TIMEOUT_MAX else seconds


def wall_clock_ms() -> int:
    """Milliseconds since 1970, for times that other machines see."""
    return time.time_ns() // 1_000_000
