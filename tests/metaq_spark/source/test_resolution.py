"""From what a user says about start and end to byte offsets, as tables. Partitions are written as letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from fix_planning import Boundaries, at, fail, spans, tp

from metaq.model import TopicPartition
from metaq_spark.errors import DataLoss, OptionError
from metaq_spark.offsets import Offsets
from metaq_spark.options.positions import Earliest, Group, Latest, Position, Specific, Timestamps
from metaq_spark.source.resolution import Bound

HELD = spans(a=(0, 100), b=(50, 200), c=(7, 7))
TIMES = {tp("a"): {1000: 30, 5000: 100}, tp("b"): {1000: 50, 2000: 60, 5000: 200}, tp("c"): {1000: 7, 5000: 7}}
"""Offset of the first message at or after each time, as the broker says."""


def first_at(times_ms: Mapping[TopicPartition, int]) -> Offsets:
    return {where: TIMES[where][time_ms] for where, time_ms in times_ms.items()}


class Times(Boundaries):
    """Positions that know times as well."""

    def __init__(self, first_at: Callable[[Mapping[TopicPartition, int]], Offsets]) -> None:
        super().__init__()
        self.first_at = first_at


def resolve(position: Position, report=fail, *, latest_if_none: bool = False, group: Offsets | None = None):
    side = Bound("startingOffsets", position, latest_if_none)
    return side.resolve(HELD, Times(first_at), lambda partitions: group or {}, report)


@pytest.mark.parametrize(
    ("position", "resolved"),
    [
        (Earliest(), at(a=0, b=50, c=7)),
        (Latest(), at(a=100, b=200, c=7)),
        (Specific(at(a=30, b=-2, c=-1)), at(a=30, b=50, c=7)),
        (Specific(at(a=-1, b=200, c=7)), at(a=100, b=200, c=7)),
        # "d" was never written to, so only its start can be meant.
        (Specific(at(a=0, b=50, c=7, d=-2)), at(a=0, b=50, c=7)),
        (Specific(at(a=0, b=50, c=7, d=0)), at(a=0, b=50, c=7)),
    ],
)
def test_positions(position: Position, resolved: dict[TopicPartition, int]) -> None:
    assert resolve(position) == resolved
    assert list(resolve(position)) == sorted(resolved)


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        (at(a=0), "no value for t/0-1, t/0-2; expected one for every partition"),
        (at(a=0, b=50, c=7, d=5), "t/0-3: no messages, or not subscribed"),
    ],
)
def test_a_specific_position_names_every_partition(offsets: dict[TopicPartition, int], words: str) -> None:
    with pytest.raises(OptionError, match="option startingOffsets") as caught:
        resolve(Specific(offsets))
    assert words in str(caught.value)


@pytest.mark.parametrize(("offset", "clamped"), [(10, 50), (201, 200)])
def test_a_specific_position_outside_of_what_is_there_is_data_loss(offset: int, clamped: int) -> None:
    position = Specific(at(a=0, b=offset, c=7))
    with pytest.raises(DataLoss, match=f"offset {offset} of t/0-1 is outside"):
        resolve(position)
    accepted: list[str] = []
    assert resolve(position, accepted.append)[tp("b")] == clamped
    assert len(accepted) == 1


@pytest.mark.parametrize("kind", [Specific, Group])
def test_a_given_position_must_be_where_a_message_starts(kind: type) -> None:
    side = Bound("startingOffsets", Specific({}) if kind is Specific else Group())
    with pytest.raises(OptionError, match="offset 33 of t/0-0 is inside a message; the message starts at 30"):
        side.check_boundaries(at(a=33, b=50), HELD, Boundaries())
    asked = Boundaries()
    for fine in (0, 30, 100):
        side.check_boundaries(at(a=fine), HELD, asked)
    Bound("startingOffsets", Earliest()).check_boundaries(at(a=33), HELD, asked)
    assert asked.rounds == 1


@pytest.mark.parametrize(
    ("times", "resolved"),
    [
        (Timestamps(1000), at(a=30, b=50, c=7)),
        (Timestamps(5000), at(a=100, b=200, c=7)),
        (Timestamps(of_each_ms=at(a=1000, b=2000, c=5000)), at(a=30, b=60, c=7)),
        # nobody knows of "d" yet: what comes there is newer than now
        (Timestamps(of_each_ms=at(a=1000, b=2000, c=5000, d=1000)), at(a=30, b=60, c=7)),
    ],
)
def test_times_with_latest_where_no_message_is_that_new(times: Timestamps, resolved: object) -> None:
    assert resolve(times, latest_if_none=True) == resolved


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (Timestamps(1000), "t/0-2 has no message at or after 1000 (ms since 1970); set startingOffsetsByTimestampStr"),
        (Timestamps(5000), "t/0-0, t/0-1, t/0-2 has no message at or after 5000, 5000, 5000"),
        (Timestamps(of_each_ms=at(a=1000, b=1000)), "no value for t/0-2; expected one for every partition"),
        (Timestamps(of_each_ms=at(a=1000, b=1000, c=1000, d=1)), "t/0-3: no messages, or not subscribed"),
    ],
)
def test_times_that_nothing_answers_to(times: Timestamps, words: str) -> None:
    with pytest.raises(OptionError, match="option startingOffsets") as caught:
        resolve(times)
    assert words in str(caught.value)


def test_a_message_that_came_between_two_lookups_is_not_there_yet() -> None:
    side = Bound("endingTimestamp", Timestamps(1), latest_if_none=True)
    positions = Times(lambda times_ms: at(a=120, b=40))
    assert side.resolve(spans(a=(0, 100), b=(50, 60)), positions, lambda partitions: {}, fail) == at(a=100, b=50)


def test_a_group_is_where_it_says_and_at_the_start_where_it_has_never_been() -> None:
    assert resolve(Group(), group=at(a=40, c=7)) == at(a=40, b=50, c=7)
    with pytest.raises(DataLoss, match="offset 20 of t/0-1 is outside of what the broker holds"):
        resolve(Group(), group=at(b=20))
