"""Quartz schedules (``deleteWhen``): which moments a text such as ``0 0 6,18 * * ?`` means.

::

    field           values                        fields are joined by blanks; the year may be left out
    second, minute  0-59                          a field is * or ? (all), or items joined by commas:
    hour            0-23                          VALUE, FROM-TO, and either of them or * with /STEP
    day of month    1-31                          (VALUE/STEP goes on to the end of the range)
    month           1-12 or JAN-DEC
    day of week     1-7 or SUN-SAT (1 = Sunday)
    year            1970-2099

Quartz's L, W and # are not understood. Source: facts section 4.1; Quartz's own documentation of the format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_ITEM: Final = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?")
_DAYS_LOOKED_AT: Final = 366 * 9
"""A 29th of February comes again within eight years, also around a century."""


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_FIELDS: Final = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 1, 7, _DAYS),
    _Field("year", 1970, 2099),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The allowed values of every field."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    years: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read a schedule of six or seven fields.

        Raises:
            ValueError: Says which field is wrong.
        """
        texts = text.upper().split()
        if not 6 <= len(texts) <= 7:
            raise ValueError(f"{len(texts)} fields, expected second minute hour day month weekday [year]")
        texts += ["*"] * (7 - len(texts))
        return cls(*(_values(field, item) for field, item in zip(_FIELDS, texts, strict=True)))

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first whole second after ``moment`` that that is allowed; ``None`` if none comes in nine years."""
        start = moment.replace(microsecond=0) + timedelta(seconds=1)
        day = start.replace(hour=0, minute=0, second=0)
        for _ in range(_DAYS_LOOKED_AT):
            if self._allows_day(day):
                found = self._first_in_day(day, max(day, start))
                if found is not None:
                    return found
            day += timedelta(days=1)
        return None

    def _allows_day(self, day: datetime) -> bool:
        weekday = day.isoweekday() % 7 + 1
        return (
            day.day in self.days and weekday in self.weekdays and day.month in self.months and day.year in self.years
        )

    def _first_in_day(self, day: datetime, earliest: datetime) -> datetime | None:
        for hour in sorted(self.hours):
            for minute in sorted(self.minutes):
                for second in sorted(self.seconds):
                    candidate = day.replace(hour=hour, minute=minute, second=second)
                    if candidate >= earliest:
                        return candidate
        return None


def _values(field: _Field, text: str) -> frozenset[int]:
    if text == "?":
        return frozenset(range(field.low, field.high + 1))
    return frozenset(value for item in text.split(",") for value in _item(field, item))


def _item(field: _Field, text: str) -> range:
    match = _ITEM.fullmatch(text)
    if match is None:
        raise ValueError(f"{field.name} {text!r}: expected *, ?, a value, FROM-TO, each also with /STEP")
    star, first_text, last_text, step_text = match.groups()
    first = field.low if star else _value(field, first_text)
    last = _value(field, last_text) if last_text else first
    if star or (step_text and not last_text):
        last = field.high
    step = int(step_text) if step_text else 1
    if first > last or step < 1:
        raise ValueError(f"{field.name} {text!r}: nothing is in that range")
    return range(first, last + 1, step)


def _value(field: _Field, text: str) -> int:
    if text in field.names:
        return field.names.index(text) + 1
    if not text.isdecimal() or not field.low <= int(text) <= field.high:
        names = f" or {field.names[0]}-{field.names[-1]}" if field.names else ""
        raise ValueError(f"{field.name} {text!r}: expected {field.low}-{field.high}{names}")
    return int(text)
