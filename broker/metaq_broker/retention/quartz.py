"""Quartz schedules (``deleteWhen``), translated field by field for ``croniter``, which finds the next moment.

::

    field           values                     croniter    items of a field, joined by commas
    second, minute  0-59                       the same    * all     5 one     5-8 a range; it may go around: 22-2
    hour            0-23                       the same    */15, 5-30/5 with a step; 5/15 goes on to the last value
    day of month    1-31                       the same    alone: ?   L last day   15W the weekday nearest to the 15th
    month           1-12 or JAN-DEC            the same
    day of week     1-7 or SUN-SAT             0-6         alone: ?   L Saturday   6L last Friday   6#3 third Friday
    year            1970-2099, may be missing  the same

Only lists of numbers and the few words above reach croniter: what a step or a range means is settled here, since the
two languages differ in it. Days of month and of week are never both restricted, as in Quartz; ``*`` may stand for
``?``. Refused, because croniter has no word for them: ``LW``, ``L-3``, and lists with ``L``, ``W`` or ``#``.

Source: docs/operations.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from croniter import CroniterBadDateError, croniter

_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_ITEM: Final = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)?(?:/(\d+))?", re.ASCII)
_LAST_WEEKDAY: Final = re.compile(r"(\w+)L", re.ASCII)
_NTH_WEEKDAY: Final = re.compile(r"(\w+)#([1-5])", re.ASCII)
_NEAREST_WEEKDAY: Final = re.compile(r"(\d+)W", re.ASCII)
_YEARS_LOOKED_AT: Final = 130
"""Longer than any schedule within croniter's years (1970-2099) can pause."""

_LEAP_YEARS_START: Final = datetime(1970, 1, 1)


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_DAY_OF_MONTH: Final = _Field("day of month", 1, 31)
_DAY_OF_WEEK: Final = _Field("day of week", 1, 7, _DAYS)
_YEAR: Final = _Field("year", 1970, 2099)
_FIELDS: Final = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _DAY_OF_MONTH,
    _Field("month", 1, 12, _MONTHS),
    _DAY_OF_WEEK,
    _YEAR,
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as written (``text``) and as croniter reads it (``expression``). Make it with ``parse``."""

    text: str
    expression: str

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read a schedule of six or seven fields, letters in any case.

        Raises:
            ValueError: Says which field is wrong, or that no such moment exists.
        """
        texts = text.upper().split()
        if not 6 <= len(texts) <= 7:
            raise ValueError(f"{len(texts)} fields, expected second minute hour day month weekday [year]")
        texts += ["*"] * (7 - len(texts))
        translated = [_translate(field, item) for field, item in zip(_FIELDS, texts, strict=True)]
        _check_days(texts[3], texts[5], translated[3], translated[5])
        schedule = cls(text, " ".join(translated))
        if schedule._next(_LEAP_YEARS_START) is None:
            raise ValueError(f"{text!r} never happens")
        return schedule

    def next_after(self, now_ms: int) -> int | None:
        """Return the first moment after ``now_ms`` (both wall-clock milliseconds), ``None`` if no more comes.

        Fields mean local time. A time that a change of the clocks skips comes as much later; one that it brings twice
        counts once, the first time.
        """
        found = self._next(datetime.fromtimestamp(now_ms / 1000))
        if found is None:
            return None
        for fold in (0, 1):
            moment_ms = int(found.replace(fold=fold).timestamp() * 1000)
            if moment_ms > now_ms:
                return moment_ms
        return now_ms + 1000  # the clocks are being changed by more than the schedule's step

    def _next(self, local: datetime) -> datetime | None:
        """Return the first moment after ``local``, both local time without a zone."""
        moments = croniter(
            self.expression,
            local.replace(fold=0),
            second_at_beginning=True,
            max_years_between_matches=_YEARS_LOOKED_AT,
        )
        try:
            found: datetime = moments.get_next(datetime)
        except CroniterBadDateError:
            return None
        return found

    def __str__(self) -> str:
        return self.text


def _check_days(month_text: str, week_text: str, month_days: str, week_days: str) -> None:
    if month_text == week_text == "?":
        raise ValueError("? stands in both day fields; one of them says when")
    if month_days != "*" and week_days != "*":
        raise ValueError(f"day of month {month_text!r} and day of week {week_text!r}: one of them must be ?")


def _translate(field: _Field, text: str) -> str:
    if text == "?" and field in (_DAY_OF_MONTH, _DAY_OF_WEEK):
        return "*"
    special = _day_of_month(text) if field is _DAY_OF_MONTH else _day_of_week(text) if field is _DAY_OF_WEEK else None
    if special is not None:
        return special
    values = {value for item in text.split(",") for value in _item(field, item)}
    if len(values) == field.high - field.low + 1:
        return "*"
    shift = 1 if field is _DAY_OF_WEEK else 0
    return ",".join(str(value - shift) for value in sorted(values))


def _day_of_month(text: str) -> str | None:
    if text == "L":
        return "l"
    match = _NEAREST_WEEKDAY.fullmatch(text)
    return f"{_value(_DAY_OF_MONTH, match[1])}w" if match else None


def _day_of_week(text: str) -> str | None:
    if text == "L":
        return "6"
    if (match := _LAST_WEEKDAY.fullmatch(text)) is not None:
        return f"l{_value(_DAY_OF_WEEK, match[1]) - 1}"
    if (match := _NTH_WEEKDAY.fullmatch(text)) is not None:
        return f"{_value(_DAY_OF_WEEK, match[1]) - 1}#{match[2]}"
    return None


def _item(field: _Field, text: str) -> list[int]:
    match = _ITEM.fullmatch(text) if text else None
    if match is None:
        raise _unknown(field, text)
    star, first_text, last_text, step_text = match.groups()
    step = 1 if step_text is None else int(step_text)
    if not 1 <= step <= field.high:
        raise ValueError(f"{field.name} {text!r}: expected a step of 1-{field.high}")
    first = _value(field, first_text, text) if first_text else field.low
    open_end = field.high if star or step_text else first
    last = _value(field, last_text, text) if last_text else open_end
    if first <= last:
        return list(range(first, last + 1, step))
    if field is _YEAR:
        raise ValueError(f"{field.name} {text!r}: nothing is in that range")
    around = [*range(first, field.high + 1), *range(field.low, last + 1)]
    return around[::step]


def _value(field: _Field, text: str, within: str | None = None) -> int:
    if text in field.names:
        return field.names.index(text) + 1
    if not text.isdecimal() or not field.low <= int(text) <= field.high:
        raise _unknown(field, within or text)
    return int(text)


def _unknown(field: _Field, text: str) -> ValueError:
    names = f" or {field.names[0]}-{field.names[-1]}" if field.names else ""
    special = {_DAY_OF_MONTH: ", or alone ?, L or 15W", _DAY_OF_WEEK: ", or alone ?, L, 6L or 6#3"}.get(field, "")
    return ValueError(f"{field.name} {text!r}: expected {field.low}-{field.high}{names}, *, ranges and steps{special}")
