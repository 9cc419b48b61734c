"""Where the partitions of a MetaQ cluster are: asked for all topics at once, and kept for a moment.

The question costs each broker a walk over all of its partitions, so its answer serves all topics, for two seconds and
for at least a hundred times as long as it took.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from metaq.model import Address, Partition
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_console.cluster.questions import FRESH_S_MAX, FRESH_SHARE

FRESH_S: Final = 2.0
Places = Mapping[str, Mapping[Partition, Address]]


class KnownPlaces:
    """Topic -> its partitions with their brokers; for any thread."""

    def __init__(self, ask: Callable[[], Places], clock: Clock = SYSTEM_CLOCK) -> None:
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._places: Places = {}
        self._fresh_until_s = float("-inf")
        self._failed: list[Exception] = []

    def of(self, topic: str) -> Mapping[Partition, Address]:
        """Return the partitions of a topic; none if no broker has messages of it: a topic that is not known may be new,
        and is asked for each time.
        """
        failed = self._failed
        with self._lock:
            if self._failed is not failed:  # the question that was waited for, of a broker that hangs perhaps
                raise self._failed[0]
            if topic not in self._places or self._clock.monotonic() >= self._fresh_until_s:
                began_s = self._clock.monotonic()
                try:
                    self._places = self._ask()
                except Exception as error:
                    self._failed = [error]
                    raise
                now_s = self._clock.monotonic()
                self._fresh_until_s = now_s + max(FRESH_S, min(FRESH_S_MAX, (now_s - began_s) * FRESH_SHARE))
            return self._places.get(topic, {})

    def forget(self) -> None:
        """Ask again the next time: something was changed."""
        with self._lock:
            self._fresh_until_s = float("-inf")
