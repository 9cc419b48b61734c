"""Quartz schedules: what the fields mean, when the next moment is, and which texts are refused."""

from __future__ import annotations

from datetime import datetime

import pytest
from metaq_broker.quartz import Schedule

FRIDAY = datetime(2026, 1, 30, 12, 30, 15, 500)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 6,18 * * ?", datetime(2026, 1, 30, 18)),
        ("* * * * * ?", datetime(2026, 1, 30, 12, 30, 16)),
        ("15 30 12 * * ?", datetime(2026, 1, 31, 12, 30, 15)),
        ("0 0/20 * * * ?", datetime(2026, 1, 30, 12, 40)),
        ("0 5-20/5 * * * ?", datetime(2026, 1, 30, 13, 5)),
        ("0 0 0 1 * ?", datetime(2026, 2, 1)),
        ("0 0 0 ? * SUN", datetime(2026, 2, 1)),
        ("0 0 0 ? * 2-6", datetime(2026, 2, 2)),
        ("0 0 0 ? * mon-fri", datetime(2026, 2, 2)),
        ("0 0 0 ? JUN *", datetime(2026, 6, 1)),
        ("0 0 0 29 2 ?", datetime(2028, 2, 29)),
        ("0 0 6 * * ? 2030", datetime(2030, 1, 1, 6)),
        ("0 0 6 30 2 ?", None),
        ("0 0 6 * * ? 1999", None),
    ],
)
def test_the_next_moment(text: str, expected: datetime | None) -> None:
    assert Schedule.parse(text).next_after(FRIDAY) == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "0 fields"),
        ("0 0 6 * *", "5 fields"),
        ("0 0 6 * * ? 2026 x", "8 fields"),
        ("60 0 6 * * ?", "second '60': expected 0-59"),
        ("0 0 24 * * ?", "hour '24': expected 0-23"),
        ("0 0 6 0 * ?", "day of month '0': expected 1-31"),
        ("0 0 6 * FOO ?", "month 'FOO': expected 1-12 or JAN-DEC"),
        ("0 0 6 ? * 8", "day of week '8': expected 1-7 or SUN-SAT"),
        ("0 0 6 L * ?", "day of month 'L': expected 1-31"),
        ("0 0 6 ? * 6#3", "day of week '6#3': expected"),
        ("0 9-5 6 * * ?", "minute '9-5': nothing is in that range"),
        ("0 */0 6 * * ?", "minute '*/0': nothing is in that range"),
        ("0 1,,2 6 * * ?", "minute '': expected"),
        ("0 -5 6 * * ?", "minute '-5': expected"),
    ],
)
def test_a_wrong_field_is_named(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=r"expected|nothing") as error:
        Schedule.parse(text)
    assert fault in str(error.value)
