"""Quartz schedules: what the fields mean, when the next moment is, and which texts are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from examples import in_one_test
from metaq_broker.log.retention.policy import Schedule

FRIDAY = datetime(2026, 1, 30, 12, 30, 15, 500_000)


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def moments(text: str, count: int, after: datetime = FRIDAY) -> list[str]:
    """The next moments of a schedule, as an operator would write them."""
    schedule, now_ms, found = Schedule.parse(text), ms(after), []
    for _ in range(count):
        next_ms = schedule.next_after(now_ms)
        assert next_ms is not None
        assert next_ms > now_ms
        found.append(f"{datetime.fromtimestamp(next_ms / 1000):%a %Y-%m-%d %H:%M:%S}")
        now_ms = next_ms
    return found


@in_one_test(
    "text, expected",
    [
        # the default, and the fields one by one
        ("0 0 6,18 * * ?", ["Fri 2026-01-30 18:00:00", "Sat 2026-01-31 06:00:00", "Sat 2026-01-31 18:00:00"]),
        ("* * * * * ?", ["Fri 2026-01-30 12:30:16", "Fri 2026-01-30 12:30:17"]),
        ("15 30 12 * * ?", ["Sat 2026-01-31 12:30:15"]),
        ("0 0 0 ? JUN *", ["Mon 2026-06-01 00:00:00", "Tue 2026-06-02 00:00:00"]),
        ("0 0 0 1 jan,JUL ?", ["Wed 2026-07-01 00:00:00", "Fri 2027-01-01 00:00:00"]),
        ("0 0 6 * * ? 2030", ["Tue 2030-01-01 06:00:00", "Wed 2030-01-02 06:00:00"]),
        ("0 0 6 1 1 ? 2027/10", ["Fri 2027-01-01 06:00:00", "Thu 2037-01-01 06:00:00"]),
        # ranges and steps
        ("0 5-20/5 * * * ?", ["Fri 2026-01-30 13:05:00", "Fri 2026-01-30 13:10:00"]),
        ("0 0/20 * * * ?", ["Fri 2026-01-30 12:40:00", "Fri 2026-01-30 13:00:00"]),
        ("0 5/25 * * * ?", ["Fri 2026-01-30 12:55:00", "Fri 2026-01-30 13:05:00", "Fri 2026-01-30 13:30:00"]),
        ("0 /30 * * * ?", ["Fri 2026-01-30 13:00:00", "Fri 2026-01-30 13:30:00"]),
        ("0 0 22-1 * * ?", ["Fri 2026-01-30 22:00:00", "Fri 2026-01-30 23:00:00", "Sat 2026-01-31 00:00:00"]),
        ("0 0 0 1/10 * ?", ["Sat 2026-01-31 00:00:00", "Sun 2026-02-01 00:00:00", "Wed 2026-02-11 00:00:00"]),
        ("0 0 0 */10 * ?", ["Sat 2026-01-31 00:00:00", "Sun 2026-02-01 00:00:00", "Wed 2026-02-11 00:00:00"]),
        ("0 0 0 ? */3 2#1", ["Mon 2026-04-06 00:00:00", "Mon 2026-07-06 00:00:00"]),
        # days of the week: 1 is Sunday
        ("0 0 0 ? * 1", ["Sun 2026-02-01 00:00:00", "Sun 2026-02-08 00:00:00"]),
        ("0 0 0 ? * 7", ["Sat 2026-01-31 00:00:00", "Sat 2026-02-07 00:00:00"]),
        ("0 0 0 ? * SUN", ["Sun 2026-02-01 00:00:00"]),
        ("0 0 0 ? * 2-6", ["Mon 2026-02-02 00:00:00"]),
        ("0 0 0 ? * mon-fri", ["Mon 2026-02-02 00:00:00"]),
        ("0 0 0 ? * SAT-MON", ["Sat 2026-01-31 00:00:00", "Sun 2026-02-01 00:00:00", "Mon 2026-02-02 00:00:00"]),
        ("0 0 0 ? * 1/3", ["Sat 2026-01-31 00:00:00", "Sun 2026-02-01 00:00:00", "Wed 2026-02-04 00:00:00"]),
        ("0 0 0 * * TUE", ["Tue 2026-02-03 00:00:00"]),
        # last, nearest, n-th
        ("0 0 0 L * ?", ["Sat 2026-01-31 00:00:00", "Sat 2026-02-28 00:00:00", "Tue 2026-03-31 00:00:00"]),
        ("0 0 0 ? * L", ["Sat 2026-01-31 00:00:00", "Sat 2026-02-07 00:00:00"]),
        ("0 0 0 ? * 6L", ["Fri 2026-02-27 00:00:00", "Fri 2026-03-27 00:00:00"]),
        ("0 0 0 ? * friL", ["Fri 2026-02-27 00:00:00"]),
        ("0 0 0 ? * 6#3", ["Fri 2026-02-20 00:00:00", "Fri 2026-03-20 00:00:00"]),
        ("0 0 0 ? * FRI#5", ["Fri 2026-05-29 00:00:00", "Fri 2026-07-31 00:00:00"]),
        ("0 0 0 15W * ?", ["Mon 2026-02-16 00:00:00", "Mon 2026-03-16 00:00:00", "Wed 2026-04-15 00:00:00"]),
        ("0 0 0 1W * ?", ["Mon 2026-02-02 00:00:00"]),
        # calendars
        ("0 0 0 29 2 ?", ["Tue 2028-02-29 00:00:00", "Sun 2032-02-29 00:00:00"]),
        ("0 0 0 31 * ?", ["Sat 2026-01-31 00:00:00", "Tue 2026-03-31 00:00:00", "Sun 2026-05-31 00:00:00"]),
        ("0 0 0 29 2 ? 2090-2099", ["Fri 2092-02-29 00:00:00"]),
        ("  0\t0 6,18 * *   ? ", ["Fri 2026-01-30 18:00:00"]),
    ],
)
def test_the_next_moments(text: str, expected: list[str]) -> None:
    assert moments(text, len(expected)) == expected


@pytest.mark.parametrize("text", ["0 0 6 * * ? 1999", "0 0 6 29 2 ? 1970-2024"])
def test_a_schedule_may_be_over(text: str) -> None:
    assert Schedule.parse(text).next_after(ms(FRIDAY)) is None


@in_one_test(
    "text, fault",
    [
        ("", "0 fields"),
        ("0 0 6 * *", "5 fields"),
        ("0 0 6 * * ? 2026 x", "8 fields"),
        ("60 0 6 * * ?", "second '60': expected 0-59"),
        ("? 0 6 * * ?", "second '?': expected 0-59"),
        ("0 0 24 * * ?", "hour '24': expected 0-23"),
        ("0 0 6 0 * ?", "day of month '0': expected 1-31"),
        ("0 0 6 * FOO ?", "month 'FOO': expected 1-12 or JAN-DEC"),
        ("0 0 6 ? 0 *", "month '0': expected 1-12"),
        ("0 0 6 ? * 8", "day of week '8': expected 1-7 or SUN-SAT"),
        ("0 0 6 ? * 0", "day of week '0': expected 1-7 or SUN-SAT"),
        ("0 0 6 * * ? 1969", "year '1969': expected 1970-2099"),
        ("0 0 6 * * ? 2030-2027", "year '2030-2027': nothing is in that range"),
        ("0 */0 6 * * ?", "minute '*/0': expected a step of 1-59"),
        ("0 0/60 6 * * ?", "minute '0/60': expected a step of 1-59"),
        ("0 1,,2 6 * * ?", "minute '': expected"),
        ("0 -5 6 * * ?", "minute '-5': expected"),
        ("0 \u0665 6 * * ?", "minute '\u0665': expected"),
        # what Quartz refuses as well
        ("0 0 6 ? * ?", "? stands in both day fields"),
        ("0 0 6 1 * MON", "day of month '1' and day of week 'MON': one of them must be ?"),
        ("0 0 6 L * 6#3", "one of them must be ?"),
        ("0 0 6 30 2 ?", "'0 0 6 30 2 ?' never happens"),
        ("0 0 6 29 2 ? 2025", "never happens"),
        ("0 0 6 ? * 6#6", "day of week '6#6': expected"),
        # what Quartz knows and croniter does not
        ("0 0 6 LW * ?", "day of month 'LW': expected 1-31, *, ranges and steps, or alone ?, L or 15W"),
        ("0 0 6 L-3 * ?", "day of month 'L-3': expected"),
        ("0 0 6 1,15W * ?", "day of month '15W': expected"),
        ("0 0 6 32W * ?", "day of month '32': expected"),
        ("0 0 6 ? * 2,6L", "day of week '6L': expected 1-7 or SUN-SAT, *, ranges and steps, or alone ?, L, 6L or 6#3"),
        # what croniter knows and Quartz does not
        ("H 0 6 * * ?", "second 'H': expected"),
        ("0 0 6 ? * L5", "day of week 'L5': expected"),
        ("0 0 6 W15 * ?", "day of month 'W15': expected"),
    ],
)
def test_a_wrong_field_is_named(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=r"expected|nothing|never|one of them") as error:
        Schedule.parse(text)
    assert fault in str(error.value)


# ---- clocks that are changed


@pytest.fixture
def central_european_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Summer time from 29 March 2026, 02:00, to 25 October 2026, 03:00."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("central_european_time")
@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("0 0 6 * * ?", datetime(2026, 3, 28, 12), ["Sun 2026-03-29 06:00:00", "Mon 2026-03-30 06:00:00"]),
        # 02:30 does not exist that day
        ("0 30 2 * * ?", datetime(2026, 3, 28, 12), ["Sun 2026-03-29 03:30:00", "Mon 2026-03-30 02:30:00"]),
        ("* * * * * ?", datetime(2026, 3, 29, 1, 59, 58), ["Sun 2026-03-29 01:59:59", "Sun 2026-03-29 03:00:00"]),
        # 02:30 exists twice that day
        ("0 30 2 * * ?", datetime(2026, 10, 24, 12), ["Sun 2026-10-25 02:30:00", "Mon 2026-10-26 02:30:00"]),
        ("0 0 * * * ?", datetime(2026, 10, 25, 1, 30), ["Sun 2026-10-25 02:00:00", "Sun 2026-10-25 03:00:00"]),
    ],
)
def test_local_time_when_the_clocks_change(text: str, after: datetime, expected: list[str]) -> None:
    assert moments(text, len(expected), after) == expected


@pytest.mark.usefixtures("central_european_time")
def test_each_second_of_the_hour_that_comes_twice_follows_the_one_before() -> None:
    schedule = Schedule.parse("* * * * * ?")
    second_pass = ms(datetime(2026, 10, 25, 2, 15, fold=1))
    assert schedule.next_after(second_pass) == second_pass + 1000
