"""When a consumer does what for its membership. Pure, except for the flag that other threads set.

=============  =========================================  ====================  =======================================
the consumer   assigns partitions                         saves positions       checks, if no change is reported
=============  =========================================  ====================  =======================================
is away        -                                          -                     after ``LOOK_S``
joins          -                                          -                     after ``AGAIN_S``
is a member    after a change, every ``refresh_s``, and   every ``save_s``      when the first of these is due, at most
               ``AGAIN_S`` after a failure                                      ``LOOK_S`` later
=============  =========================================  ====================  =======================================

The due time moves before a step runs, so a step that fails is not repeated at once.
"""

from __future__ import annotations

from math import inf
from typing import Final

from metaq.net.clock import Clock

AGAIN_S: Final = 1.0
"""Pause before a failed step is retried, and between two checks of partitions owned by others."""

LOOK_S: Final = 5.0
"""Longest time for which a consumer that the program has dropped stays in its group."""


class StepSchedule:
    """Due times of the steps. ``note_change`` is thread-safe; the rest is for one thread."""

    def __init__(self, save_s: float, clock: Clock) -> None:
        self._save_period_s, self._clock = save_s, clock
        self._changed = True
        self._divide_s = inf
        self._save_s = clock.monotonic() + save_s
        self._next_s = 0.0

    def note_change(self) -> None:
        """Members or partitions have changed, or may have."""
        self._changed = True

    def is_away(self) -> None:
        """The registry is away: nothing is due until it reports back."""
        self._next_s = inf

    def joins(self) -> None:
        """The consumer cannot join now; all its partitions are assigned when it can."""
        self._changed = True
        self._next_s = self._clock.monotonic() + AGAIN_S

    def is_member(self) -> None:
        """The consumer is a member: its steps are due."""
        self._next_s = 0.0

    def begin_division(self) -> bool:
        """Return whether an assignment is due; the next is due after ``AGAIN_S``, unless ``divided`` is called."""
        now_s = self._clock.monotonic()
        due = self._changed or now_s >= self._divide_s
        if due:
            self._changed, self._divide_s = False, now_s + AGAIN_S
        return due

    def divided(self, refresh_s: float | None) -> None:
        """All partitions are assigned; the next assignment is due after ``refresh_s``, ``None``: after a
        change only.
        """
        self._divide_s = inf if refresh_s is None else self._clock.monotonic() + refresh_s

    def begin_saving(self) -> bool:
        now_s = self._clock.monotonic()
        due = now_s >= self._save_s
        if due:
            self._save_s = now_s + self._save_period_s
        return due

    def pause_s(self) -> float:
        """Return the seconds until the next step is due, unless a change is reported."""
        now_s = self._clock.monotonic()
        due_s = self._next_s or min(self._divide_s, self._save_s)
        return max(0.0, min(due_s - now_s, LOOK_S))
