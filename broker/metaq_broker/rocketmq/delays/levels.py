"""Delay levels: a table of waiting times, numbered from 1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

DEFAULT_TEXT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX: Final = 64
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STEP: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """``delays_ms``: the waiting time of level 1, 2 and so on."""

    delays_ms: Sequence[int]

    @classmethod
    def parse(cls, text: str = DEFAULT_TEXT) -> Self:
        """Return the levels of a text such as ``1s 5s 2m 1h 1d``.

        Raises:
            ValueError: A part is not a valid time, or there are none or too many.
        """
        steps = text.split()
        if not 1 <= len(steps) <= LEVELS_MAX:
            raise ValueError(f"delay levels {text!r}: {len(steps)} of them; expected 1 to {LEVELS_MAX}")
        delays = []
        for step in steps:
            found = _STEP.fullmatch(step)
            if found is None:
                raise ValueError(f"delay level {step!r}; expected a number above 0 and s, m, h or d, for example 30s")
            delays.append(int(found[1]) * _UNIT_MS[found[2]])
        return cls(tuple(delays))

    @property
    def count(self) -> int:
        """How many there are; the number of the highest."""
        return len(self.delays_ms)

    def nearest(self, level: int) -> int:
        """Return ``level``, limited to the highest one; 0 or less means no delay."""
        return max(0, min(level, self.count))

    def delay_ms(self, level: int) -> int:
        """Return the waiting time of a level from 1 to ``count``."""
        return self.delays_ms[level - 1]
