"""What is due when: several Quartz schedules against a wall clock that may jump.

A schedule whose moment has come is due once, however late somebody asks and however many of its moments have passed.
When the clock was set back, the next moment is looked for again.

Source: docs/operations.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metaq_broker.retention.quartz import Schedule


@dataclass(slots=True)
class _Planned:
    schedule: Schedule
    looked_at_ms: int
    next_ms: int | None

    def plan(self, now_ms: int) -> None:
        self.looked_at_ms, self.next_ms = now_ms, self.schedule.next_after(now_ms)


class Timetable:
    """Schedules, each known by its text. All times are wall-clock milliseconds."""

    def __init__(self) -> None:
        self._planned: dict[str, _Planned] = {}

    def update(self, texts: Iterable[str], now_ms: int) -> None:
        """Keep exactly these schedules. The next moments of those that were there already stay.

        Raises:
            ValueError: A text is no schedule.
        """
        kept = {}
        for text in texts:
            planned = self._planned.get(text)
            if planned is None:
                planned = _Planned(Schedule.parse(text), now_ms, None)
                planned.plan(now_ms)
            kept[text] = planned
        self._planned = kept

    def due(self, now_ms: int) -> set[str]:
        """Return the schedules whose moment has come since they were last looked at, and plan their next ones."""
        found = set()
        for text, planned in self._planned.items():
            if planned.next_ms is not None and planned.next_ms <= now_ms:
                found.add(text)
                planned.plan(now_ms)
            elif now_ms < planned.looked_at_ms:
                planned.plan(now_ms)
        return found

    def next_of(self, text: str) -> int | None:
        """Return the next moment of one schedule; ``None`` if none comes any more or the schedule is not here."""
        planned = self._planned.get(text)
        return None if planned is None else planned.next_ms

    def next_of_all(self) -> int | None:
        """Return the earliest next moment, ``None`` if there is none."""
        return min((each.next_ms for each in self._planned.values() if each.next_ms is not None), default=None)
