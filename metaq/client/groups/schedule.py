"""When a consumer does what for its place in the group. Pure, but for the flag that other threads set.

=============  =========================================  ====================  =======================================
the consumer   divides partitions                         saves positions       looks again, if nothing is reported
=============  =========================================  ====================  =======================================
is away        -                                          -                     after ``LOOK_S``
joins          -                                          -                     after ``AGAIN_S``
is a member    after a change, every ``refresh_s``, and   every ``save_s``      when the first of these is due, at most
               ``AGAIN_S`` after it could not do all                            ``LOOK_S`` later
=============  =========================================  ====================  =======================================

What is due moves on before it is done, so that nothing which fails is done again at once.
"""

from __future__ import annotations

from math import inf
from typing import Final

from metaq.net.clock import Clock

AGAIN_S: Final = 1.0
"""Pause before a step that could not be done is tried again, and between two looks at partitions of others."""

LOOK_S: Final = 5.0
"""Longest time for which a consumer that the program has dropped stays in its group."""


class Schedule:
    """``note_change`` may be called by any thread, the rest by one."""

    def __init__(self, save_s: float, clock: Clock) -> None:
        self._save_period_s, self._clock = save_s, clock
        self._changed = True
        self._divide_s = inf
        self._save_s = clock.monotonic() + save_s
        self._next_s = 0.0

    def note_change(self) -> None:
        """Members or partitions are others than before, or may be."""
        self._changed = True

    def is_away(self) -> None:
        """Nothing can be done before the registry is back, which it reports."""
        self._next_s = inf

    def joins(self) -> None:
        """The consumer could not become a member now; all its partitions are to be divided when it can."""
        self._changed = True
        self._next_s = self._clock.monotonic() + AGAIN_S

    def is_member(self) -> None:
        """What is due for a member counts."""
        self._next_s = 0.0

    def begin_division(self) -> bool:
        """Return whether partitions are to be divided now; they are again after ``AGAIN_S``, unless ``divided`` is
        called.
        """
        now_s = self._clock.monotonic()
        due = self._changed or now_s >= self._divide_s
        if due:
            self._changed, self._divide_s = False, now_s + AGAIN_S
        return due

    def divided(self, refresh_s: float | None) -> None:
        """All partitions are divided; they are again after ``refresh_s``, ``None``: after a change only."""
        self._divide_s = inf if refresh_s is None else self._clock.monotonic() + refresh_s

    def begin_saving(self) -> bool:
        """Return whether positions are to be saved now."""
        now_s = self._clock.monotonic()
        due = now_s >= self._save_s
        if due:
            self._save_s = now_s + self._save_period_s
        return due

    def pause_s(self) -> float:
        """Return how long there is nothing to do, unless something is reported."""
        now_s = self._clock.monotonic()
        due_s = self._next_s or min(self._divide_s, self._save_s)
        return max(0.0, min(due_s - now_s, LOOK_S))
