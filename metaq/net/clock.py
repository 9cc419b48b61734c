"""The client's only door to time: it measures deadlines and takes pauses, so tests can pass a manual one."""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    """A monotonic clock, in seconds, that can also pause the calling thread."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Pause for ``seconds``."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK: Final[Clock] = SystemClock()


def wall_clock_ms() -> int:
    """Milliseconds since 1970, for what others compare with their own clocks."""
    return time.time_ns() // 1_000_000
