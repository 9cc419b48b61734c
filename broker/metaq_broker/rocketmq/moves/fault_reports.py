"""Limits the log of a recurring fault: the first time, then once a minute."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

INTERVAL_MS: Final = 60_000


class FaultReports:
    """Counts faults by key. Keys are few: a report is kept for each."""

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
