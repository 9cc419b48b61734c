"""What is due when, against a clock that goes on, jumps and is set back."""

from __future__ import annotations

from datetime import datetime

import pytest
from metaq_broker.log.retention.policy import Timetable

DAILY, HOURLY, OVER = "0 0 6 * * ?", "0 0 * * * ?", "0 0 6 * * ? 1999"


def at(day: int, hour: int, minute: int = 0) -> int:
    return int(datetime(2026, 1, day, hour, minute).timestamp() * 1000)


@pytest.fixture
def timetable() -> Timetable:
    timetable = Timetable()
    timetable.update([DAILY, HOURLY, OVER], at(10, 4, 30))
    return timetable


def test_nothing_is_due_before_its_moment(timetable: Timetable) -> None:
    assert timetable.due(at(10, 4, 59)) == set()
    assert (timetable.next_of(DAILY), timetable.next_of(HOURLY)) == (at(10, 6), at(10, 5))
    assert timetable.next_of_all() == at(10, 5)


def test_at_its_moment_a_schedule_is_due_once(timetable: Timetable) -> None:
    assert timetable.due(at(10, 5)) == {HOURLY}
    assert timetable.due(at(10, 5)) == set()
    assert timetable.due(at(10, 6)) == {DAILY, HOURLY}
    assert timetable.next_of_all() == at(10, 7)


def test_moments_that_nobody_asked_about_count_as_one(timetable: Timetable) -> None:
    assert timetable.due(at(13, 12, 30)) == {DAILY, HOURLY}
    assert timetable.due(at(13, 12, 31)) == set()
    assert (timetable.next_of(DAILY), timetable.next_of(HOURLY)) == (at(14, 6), at(13, 13))


def test_a_clock_that_was_set_back_does_not_stop_the_schedules(timetable: Timetable) -> None:
    assert timetable.due(at(20, 12)) == {DAILY, HOURLY}
    assert timetable.due(at(10, 4, 30)) == set()
    assert timetable.due(at(10, 5)) == {HOURLY}
    assert timetable.next_of(DAILY) == at(10, 6)


def test_a_schedule_that_is_over_is_never_due(timetable: Timetable) -> None:
    assert timetable.next_of(OVER) is None
    timetable.update([OVER], at(10, 4))
    assert timetable.due(at(30, 6)) == set()
    assert timetable.next_of_all() is None


def test_an_update_disturbs_only_what_changes(timetable: Timetable) -> None:
    timetable.update([HOURLY], at(10, 5, 30))
    assert timetable.due(at(10, 5, 31)) == {HOURLY}  # its moment, 5:00, has not been asked about yet
    assert timetable.next_of(DAILY) is None
    timetable.update([HOURLY, DAILY], at(10, 6, 30))
    assert timetable.next_of(DAILY) == at(11, 6)


def test_a_wrong_text_changes_nothing(timetable: Timetable) -> None:
    with pytest.raises(ValueError, match="fields"):
        timetable.update([HOURLY, "hourly"], at(10, 5))
    assert timetable.next_of(DAILY) == at(10, 6)
