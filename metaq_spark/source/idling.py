"""How often a query with nothing to do is asked whether there is something.

Spark asks ten milliseconds after each answer. An answer over thousands of partitions takes longer than that, most of it
JSON, in which the offset goes there and back. So after an answer that there is nothing to do, as the one before it, the
query rests, in proportion to the processor time that an answer takes in its process. Where answers are cheap it does
not rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from metaq.net.clock import Clock

REST_PER_ANSWER: Final = 60
"""How many times as long as the processor worked on an answer the next one is put off, ..."""

REST_S_MAX: Final = 0.5
"""... up to this, ..."""

REST_S_MIN: Final = 0.1
"""... and not at all if it is less than this."""


class Idling:
    """Rests after answers that say that there is nothing to do. ``cpu_s`` returns this process's seconds."""

    def __init__(self, clock: Clock, cpu_s: Callable[[], float] = time.process_time) -> None:
        self._clock, self._cpu_s = clock, cpu_s
        self._since_cpu_s: float | None = None

    def nothing(self) -> None:
        """The answer is that there is nothing to do: rest before it is given."""
        if self._since_cpu_s is not None:
            rest_s = min(REST_PER_ANSWER * (self._cpu_s() - self._since_cpu_s), REST_S_MAX)
            if rest_s >= REST_S_MIN:
                self._clock.sleep(rest_s)
        self._since_cpu_s = self._cpu_s()

    def something(self) -> None:
        """The answer is that there is a batch: it goes at once."""
        self._since_cpu_s = None
