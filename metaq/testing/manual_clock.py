"""A clock that moves only when a test moves it."""

from __future__ import annotations


class ManualClock:
    """A ``Clock`` whose ``sleep`` returns at once and advances the time."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self._now_s = now_s
        self.slept_s: list[float] = []

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): time does not go back")
        self._now_s += seconds
