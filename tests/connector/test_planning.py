"""Where micro-batches start and end, as tables.

Partitions are written as letters; all are of topic ``t`` on broker 0. Frames are given by their boundaries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.model import OffsetRange, Partition, TopicPartition
from metaq_spark.errors import DataLoss, OptionError
from metaq_spark.planning import check_boundaries, limit_ends, plan_batch, ranges_between, resolve, share_out
from metaq_spark.positions import Earliest, Latest, Position, Specific


def tp(letter: str) -> TopicPartition:
    return TopicPartition("t", Partition(0, ord(letter) - ord("a")))


def at(**offsets: int) -> dict[TopicPartition, int]:
    return {tp(letter): offset for letter, offset in offsets.items()}


def spans(**ranges: tuple[int, int]) -> dict[TopicPartition, OffsetRange]:
    return {tp(letter): OffsetRange(*span) for letter, span in ranges.items()}


class Boundaries:
    """Frames of one size in every partition, or explicit boundaries; counts the questions."""

    def __init__(self, size: int = 10, **boundaries: list[int]) -> None:
        self.size, self.explicit, self.asked = size, boundaries, 0

    def _of(self, where: TopicPartition) -> list[int] | None:
        return self.explicit.get(chr(ord("a") + where.partition.index))

    def at_or_below(self, where: TopicPartition, offset: int, floor: int) -> int:
        self.asked += 1
        known = self._of(where)
        boundary = offset // self.size * self.size if known is None else known[bisect_right(known, offset) - 1]
        return max(floor, boundary)

    def end_of_frame(self, where: TopicPartition, offset: int) -> int:
        self.asked += 1
        known = self._of(where)
        return offset + self.size if known is None else known[known.index(offset) + 1]


def fail(what: str) -> None:
    raise DataLoss(what)


HELD = spans(a=(0, 100), b=(50, 200), c=(7, 7))


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
    assert resolve("startingOffsets", position, HELD, fail) == resolved


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        (at(a=0), "t/0-1, t/0-2 is missing; name every partition"),
        (at(a=0, b=50, c=7, d=5), "t/0-3 holds no messages"),
    ],
)
def test_a_specific_position_names_every_partition(offsets: dict[TopicPartition, int], words: str) -> None:
    with pytest.raises(OptionError, match="option startingOffsets") as caught:
        resolve("startingOffsets", Specific(offsets), HELD, fail)
    assert words in str(caught.value)


@pytest.mark.parametrize(("offset", "clamped"), [(10, 50), (201, 200)])
def test_a_specific_position_outside_of_what_is_there_is_data_loss(offset: int, clamped: int) -> None:
    position = Specific(at(a=0, b=offset, c=7))
    with pytest.raises(DataLoss, match=f"offset {offset} of t/0-1 is outside"):
        resolve("startingOffsets", position, HELD, fail)
    accepted: list[str] = []
    assert resolve("startingOffsets", position, HELD, accepted.append)[tp("b")] == clamped
    assert len(accepted) == 1


def test_a_specific_position_must_be_where_a_message_starts() -> None:
    position = Specific(at(a=33))
    with pytest.raises(OptionError, match="offset 33 of t/0-0 is inside a message; the message starts at 30"):
        check_boundaries("startingOffsets", position, at(a=33), spans(a=(0, 100)), Boundaries())
    asked = Boundaries()
    for fine in (0, 30, 100):
        check_boundaries("startingOffsets", position, at(a=fine), spans(a=(0, 100)), asked)
    check_boundaries("startingOffsets", Earliest(), at(a=33), spans(a=(0, 100)), asked)
    assert asked.asked == 1


@pytest.mark.parametrize(
    ("start", "end", "ranges"),
    [
        (at(a=0, b=5), at(a=10, b=5), spans(a=(0, 10))),
        (at(b=1, a=0), at(b=2, a=1), spans(a=(0, 1), b=(1, 2))),
        # met in this batch: read from the next one on
        (at(a=0), at(a=1, b=50), spans(a=(0, 1))),
        # went backwards, and that was accepted
        (at(a=10), at(a=5), {}),
        ({}, {}, {}),
    ],
)
def test_ranges(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], ranges: object) -> None:
    assert ranges_between(start, end) == ranges
    assert list(ranges_between(start, end)) == sorted(ranges_between(start, end))


@pytest.mark.parametrize(
    ("start", "held", "ceiling", "bytes_max", "end"),
    [
        # no limit: everything
        (at(a=0, b=5), spans(a=(0, 100), b=(0, 5)), None, None, at(a=100, b=5)),
        # the lookup came without b: it stays, it is not forgotten
        (at(a=0, b=5), spans(a=(0, 100)), None, None, at(a=100, b=5)),
        (at(a=0, b=5), {}, None, 10, at(a=0, b=5)),
        # b is new: noted at its first byte, read with the next batch
        (at(a=0), spans(a=(0, 100), b=(70, 90)), None, None, at(a=100, b=70)),
        ({}, spans(a=(0, 100)), None, None, at(a=0)),
        # a limit that is large enough changes nothing and asks nobody
        (at(a=0), spans(a=(0, 100)), None, 100, at(a=100)),
        (at(a=0), spans(a=(0, 100)), None, 99, at(a=90)),
        (at(a=0, b=0), spans(a=(0, 100), b=(0, 300)), None, 100, at(a=20, b=70)),
        # at least one message of each
        (at(a=0, b=0), spans(a=(0, 100), b=(0, 300)), None, 1, at(a=10, b=10)),
        # AvailableNow: not beyond the ceiling, and nothing that it does not name
        (at(a=0), spans(a=(0, 100), b=(0, 9)), at(a=60), None, at(a=60)),
        (at(a=0), spans(a=(0, 100)), at(a=60), 25, at(a=20)),
        (at(a=60), spans(a=(0, 100)), at(a=60), 25, at(a=60)),
        # a start behind the ceiling (latest, looked up later) never goes back
        (at(a=80), spans(a=(0, 100)), at(a=60), None, at(a=80)),
        (at(a=0), spans(a=(0, 100), b=(20, 50)), at(a=60, b=40), None, at(a=60, b=20)),
        (at(a=60, b=20), spans(a=(0, 100), b=(20, 50)), at(a=60, b=40), None, at(a=60, b=40)),
    ],
)
def test_batches(
    start: dict[TopicPartition, int],
    held: dict[TopicPartition, OffsetRange],
    ceiling: dict[TopicPartition, int] | None,
    bytes_max: int | None,
    end: dict[TopicPartition, int],
) -> None:
    planned = plan_batch(start, held, ceiling=ceiling, bytes_max=bytes_max, frames=Boundaries(), report_loss=fail)
    assert planned == end
    assert list(planned) == sorted(planned)


@pytest.mark.parametrize(
    ("start", "held", "words", "end"),
    [
        (at(a=5), spans(a=(30, 100)), "offset 5 was to be read next, but the broker holds [30, 100)", at(a=100)),
        (at(a=120), spans(a=(0, 100)), "deleted and made again", at(a=100)),
        (at(a=120, b=1), spans(a=(0, 0), b=(0, 7)), "t/0-0", at(a=0, b=7)),
    ],
)
def test_lost_data_is_reported_and_if_accepted_passed_over(
    start: dict[TopicPartition, int],
    held: dict[TopicPartition, OffsetRange],
    words: str,
    end: dict[TopicPartition, int],
) -> None:
    with pytest.raises(DataLoss) as caught:
        plan_batch(start, held, ceiling=None, bytes_max=None, frames=Boundaries(), report_loss=fail)
    assert words in str(caught.value)
    assert "failOnDataLoss" in str(caught.value)
    accepted: list[str] = []
    planned = plan_batch(start, held, ceiling=None, bytes_max=None, frames=Boundaries(), report_loss=accepted.append)
    assert planned == end
    assert len(accepted) == 1


def test_accepted_loss_counts_only_what_is_left_against_the_limit() -> None:
    ends = plan_batch(
        at(a=0), spans(a=(1000, 2000)), ceiling=None, bytes_max=100, frames=Boundaries(), report_loss=lambda what: None
    )
    assert ends == at(a=1100)


@pytest.mark.parametrize(
    ("backlogs", "limit", "shares"),
    [
        (at(a=100, b=100), 100, at(a=50, b=50)),
        (at(a=100, b=300), 100, at(a=25, b=75)),
        (at(a=1, b=999), 100, at(a=0, b=99)),
        (at(a=10), 100, at(a=10)),
        (at(a=10), -5, at(a=0)),
        ({}, 100, {}),
    ],
)
def test_shares(backlogs: dict[TopicPartition, int], limit: int, shares: object) -> None:
    assert share_out(backlogs, limit) == shares


@pytest.mark.parametrize(
    ("boundaries", "limit", "ends"),
    [
        # b's next message is larger than its share: b gets it, a gives way
        ({"a": [0, 10, 20, 30, 40, 100], "b": [0, 60, 100]}, 80, at(a=20, b=60)),
        # both are larger than their shares
        ({"a": [0, 90, 100], "b": [0, 80, 100]}, 20, at(a=90, b=80)),
        # a single message larger than the limit
        ({"a": [0, 100]}, 1, at(a=100)),
        ({"a": [0, 1, 100]}, 99, at(a=1)),
        ({"a": [0, 99, 100]}, 99, at(a=99)),
        ({"a": [0, 50, 100]}, 100, at(a=100)),
    ],
)
def test_limits(boundaries: dict[str, list[int]], limit: int, ends: dict[TopicPartition, int]) -> None:
    ahead = {tp(letter): OffsetRange(0, 100) for letter in boundaries}
    assert limit_ends(ahead, limit, Boundaries(**boundaries)) == ends


frames = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@given(st.lists(frames, min_size=1, max_size=6), st.integers(1, 500))
def test_limits_in_general(sizes: list[list[int]], limit: int) -> None:
    letters = [chr(ord("a") + place) for place in range(len(sizes))]
    boundaries = {
        letter: [0, *(sum(frame[: count + 1]) for count in range(len(frame)))]
        for letter, frame in zip(letters, sizes, strict=True)
    }
    ahead = {tp(letter): OffsetRange(0, marks[-1]) for letter, marks in boundaries.items()}
    ends = limit_ends(ahead, limit, Boundaries(**boundaries))
    assert set(ends) == set(ahead)
    for letter, marks in boundaries.items():
        assert ends[tp(letter)] in marks[1:]  # whole messages, and at least one
    one_each = sum(marks[1] for marks in boundaries.values())
    assert sum(ends.values()) <= max(limit, one_each)


@given(st.lists(frames, min_size=1, max_size=6), st.integers(1, 500))
def test_batches_under_a_limit_reach_the_end(sizes: list[list[int]], limit: int) -> None:
    letters = [chr(ord("a") + place) for place in range(len(sizes))]
    boundaries = {
        letter: [0, *(sum(frame[: count + 1]) for count in range(len(frame)))]
        for letter, frame in zip(letters, sizes, strict=True)
    }
    held = {tp(letter): OffsetRange(0, marks[-1]) for letter, marks in boundaries.items()}
    here, batches = dict.fromkeys(held, 0), 0
    while here != {where: span.end for where, span in held.items()}:
        here = plan_batch(here, held, ceiling=None, bytes_max=limit, frames=Boundaries(**boundaries), report_loss=fail)
        batches += 1
        assert batches <= sum(map(len, sizes))
