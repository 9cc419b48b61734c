"""Which segments are removed, how (``deletePolicy``), and when (``deleteWhen``). Pure: no disk.

::

    delete,TIME           deleted
    archive,TIME          renamed to START.meta.arc
    archive,TIME,true     packed into START.meta.zip

TIME is a number of hours, or a number with ``s``, ``m`` or ``h``. Only the oldest segments are removed, so that the
partition has no gap.

Quartz schedules (``deleteWhen``), translated field by field for ``croniter``, which finds the next moment.

::

    field           values                     croniter    items of a field, joined by commas
    second, minute  0-59                       the same    * all     5 one     5-8 a range; it may go around: 22-2
    hour            0-23                       the same    */15, 5-30/5 with a step; 5/15 goes on to the last value
    day of month    1-31                       the same    alone: ?   L last day   15W the weekday nearest to the 15th
    month           1-12 or JAN-DEC            the same
    day of week     1-7 or SUN-SAT             0-6         alone: ?   L Saturday   6L last Friday   6#3 third Friday
    year            1970-2099, may be missing  the same

croniter gets only lists of numbers and the few words above: steps and ranges are evaluated here, because the two
languages differ. Days of month and of week are never both restricted, as in Quartz; ``*`` may replace ``?``. Refused,
because croniter cannot express them: ``LW``, ``L-3``, and lists with ``L``, ``W`` or ``#``.

``Timetable`` handles several schedules with a wall clock that may jump: a schedule is due once, even if several of its
times have passed since the last check. After the clock was set back, the next time is computed again.

Source: docs/operations.md, docs/log-format.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import takewhile
from math import inf
from typing import Final, NamedTuple

from croniter import CroniterBadDateError, croniter

from metaq_broker.log.segments.segment import SegmentInfo

_TIME: Final = re.compile(r"(\d{1,9})([smh]?)", re.ASCII)
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "": 3_600_000}
_ALLOWED: Final = "delete,TIME or archive,TIME[,true]; TIME is a number of hours, or a number with s, m or h"


class Removal(Enum):
    """How a segment is removed."""

    DELETE = "delete"
    ARCHIVE = "archive"
    ARCHIVE_PACKED = "archive packed"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Segments that were last written more than ``age_ms_max`` ago are removed by ``removal``."""

    removal: Removal
    age_ms_max: int

    @classmethod
    def parse(cls, text: str) -> RetentionPolicy:
        """Parse a policy of server.ini; blanks around the commas are allowed.

        Raises:
            ValueError: Says what is allowed.
        """
        word, *rest = (part.strip() for part in text.split(","))
        time = _TIME.fullmatch(rest[0]) if rest else None
        removal = _removal(word, rest[1:])
        if time is None or removal is None:
            raise ValueError(_ALLOWED)
        return cls(removal, int(time[1]) * _UNIT_MS[time[2]])

    def expired(self, segments: Sequence[SegmentInfo], now_ms: int, grown_s: float = inf) -> list[SegmentInfo]:
        """Return the ``segments`` (of a whole partition, oldest first) that are not kept any more, oldest first.

        Never the one that is being written, and none after one that is kept. ``now_ms`` is the wall clock, ``grown_s``
        the monotonic one: a segment that was written since the start must be too old by both.
        """

        def too_old(segment: SegmentInfo) -> bool:
            is_new = segment.written_s is not None and (grown_s - segment.written_s) * 1000 <= self.age_ms_max
            return segment.read_only and not is_new and now_ms - segment.mtime_ms > self.age_ms_max

        return list(takewhile(too_old, segments))


def _removal(word: str, options: Sequence[str]) -> Removal | None:
    if word == "delete" and not options:
        return Removal.DELETE
    if word == "archive" and options in ([], ["false"]):
        return Removal.ARCHIVE
    return Removal.ARCHIVE_PACKED if word == "archive" and options == ["true"] else None


_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_ITEM: Final = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)?(?:/(\d+))?", re.ASCII)
_LAST_WEEKDAY: Final = re.compile(r"(\w+)L", re.ASCII)
_NTH_WEEKDAY: Final = re.compile(r"(\w+)#([1-5])", re.ASCII)
_NEAREST_WEEKDAY: Final = re.compile(r"(\d+)W", re.ASCII)
_YEARS_LOOKED_AT: Final = 130
"""Longer than any pause of a schedule within croniter's years (1970-2099)."""

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
    """A schedule as written (``text``) and for croniter (``expression``). Create it with ``parse``."""

    text: str
    expression: str

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Parse a schedule of six or seven fields, letters in any case.

        Raises:
            ValueError: Says which field is wrong, or that no such time exists.
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
        """Return the first time after ``now_ms`` (both wall-clock milliseconds), ``None`` if there is none.

        Fields are local time. A time that the start of daylight saving time skips is later by the length of the gap; a
        time that occurs twice counts once, the first time.
        """
        found = self._next(datetime.fromtimestamp(now_ms / 1000))
        if found is None:
            return None
        for fold in (0, 1):
            moment_ms = int(found.replace(fold=fold).timestamp() * 1000)
            if moment_ms > now_ms:
                return moment_ms
        return now_ms + 1000  # the clocks change by more than the schedule's step

    def _next(self, local: datetime) -> datetime | None:
        """Return the first time after ``local``, both local time without a zone."""
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


@dataclass(slots=True)
class _Planned:
    schedule: Schedule
    asked_ms: int
    next_ms: int | None

    def plan(self, now_ms: int) -> None:
        self.asked_ms, self.next_ms = now_ms, self.schedule.next_after(now_ms)


class Timetable:
    """Schedules, each identified by its text. All times are wall-clock milliseconds."""

    def __init__(self) -> None:
        self._planned: dict[str, _Planned] = {}

    def update(self, texts: Iterable[str], now_ms: int) -> None:
        """Keep exactly these schedules. Known schedules keep their next times.

        Raises:
            ValueError: A text is not a schedule.
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
        """Return the schedules that became due since the last call, and compute their next times."""
        found = set()
        for text, planned in self._planned.items():
            if planned.next_ms is not None and planned.next_ms <= now_ms:
                found.add(text)
                planned.plan(now_ms)
            elif now_ms < planned.asked_ms:
                planned.plan(now_ms)
        return found

    def next_of(self, text: str) -> int | None:
        """Return the next time of one schedule; ``None`` if there is none, or the schedule is unknown."""
        planned = self._planned.get(text)
        return None if planned is None else planned.next_ms

    def next_of_all(self) -> int | None:
        """Return the earliest next time, ``None`` if there is none."""
        return min((each.next_ms for each in self._planned.values() if each.next_ms is not None), default=None)
