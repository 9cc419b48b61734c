"""How limits are shared out, as tables. Partitions are written as letters, frames by their boundaries."""

from __future__ import annotations

import pytest
from fix_planning import Boundaries, at, available, fail, spans, tp
from hypothesis import given
from hypothesis import strategies as st

from metaq.model import OffsetRange, TopicPartition
from metaq.testing.manual_clock import ManualClock
from metaq_spark.backends.metaq.source import SENTENCES
from metaq_spark.offsets import Progress
from metaq_spark.source.limits import BatchLimits, TriggerDelay, limit_bytes, limit_messages, limited, share_out
from metaq_spark.source.planning import plan_batch


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
def test_limits_by_bytes(boundaries: dict[str, list[int]], limit: int, ends: dict[TopicPartition, int]) -> None:
    ahead = {tp(letter): OffsetRange(0, 100) for letter in boundaries}
    assert limit_bytes(ahead, limit, Boundaries(**boundaries)) == ends


frames = st.lists(st.integers(Boundaries.offsets_per_message_min, 80), min_size=1, max_size=12)


@given(st.lists(frames, min_size=1, max_size=6), st.integers(1, 500))
def test_limits_by_bytes_in_general(sizes: list[list[int]], limit: int) -> None:
    letters = [chr(ord("a") + place) for place in range(len(sizes))]
    boundaries = {
        letter: [0, *(sum(frame[: count + 1]) for count in range(len(frame)))]
        for letter, frame in zip(letters, sizes, strict=True)
    }
    ahead = {tp(letter): OffsetRange(0, marks[-1]) for letter, marks in boundaries.items()}
    ends = limit_bytes(ahead, limit, Boundaries(**boundaries))
    assert set(ends) == set(ahead)
    for letter, marks in boundaries.items():
        assert ends[tp(letter)] in marks[1:]  # whole messages, and at least one
    one_each = sum(marks[1] for marks in boundaries.values())
    assert sum(ends.values()) <= max(limit, one_each)


@pytest.mark.parametrize(
    ("boundaries", "limit", "ends"),
    [
        ({"a": [0, 10, 20, 30, 100]}, 2, at(a=20)),
        ({"a": [0, 10, 20, 30, 100]}, 4, at(a=100)),
        ({"a": [0, 10, 20, 30, 100]}, 5, at(a=100)),
        # in proportion to the backlogs in bytes
        ({"a": [*range(0, 101, 10)], "b": [*range(0, 301, 10)]}, 8, at(a=20, b=60)),
        # what b, of two large messages, leaves of its share goes to a
        ({"a": [*range(0, 101, 10)], "b": [0, 150, 300]}, 8, at(a=60, b=300)),
        # at least one of each, and the others give way
        ({"a": [0, 10], "b": [*range(0, 1001, 10)]}, 5, at(a=10, b=40)),
        ({"a": [0, 10, 20], "b": [0, 10, 20], "c": [0, 10, 20]}, 1, at(a=10, b=10, c=10)),
    ],
)
def test_limits_by_messages(boundaries: dict[str, list[int]], limit: int, ends: dict[TopicPartition, int]) -> None:
    ahead = {tp(letter): OffsetRange(0, marks[-1]) for letter, marks in boundaries.items()}
    assert limit_messages(ahead, limit, Boundaries(**boundaries)) == ends


def marks_of(sizes: list[list[int]]) -> dict[str, list[int]]:
    return {
        chr(ord("a") + place): [0, *(sum(frame[: count + 1]) for count in range(len(frame)))]
        for place, frame in enumerate(sizes)
    }


@given(st.lists(frames, min_size=1, max_size=6), st.integers(1, 80))
def test_limits_by_messages_in_general(sizes: list[list[int]], limit: int) -> None:
    boundaries = marks_of(sizes)
    ahead = {tp(letter): OffsetRange(0, marks[-1]) for letter, marks in boundaries.items()}
    ends = limit_messages(ahead, limit, Boundaries(**boundaries))
    counts = [boundaries[letter].index(ends[tp(letter)]) for letter in boundaries]  # whole messages
    assert min(counts) >= 1
    assert sum(counts) <= max(limit, len(counts))
    assert sum(counts) >= min(limit - len(counts), sum(map(len, sizes)))  # and the limit is used


@given(st.lists(frames, min_size=1, max_size=6), st.integers(1, 500), st.integers(1, 80))
def test_both_limits_hold(sizes: list[list[int]], bytes_max: int, messages_max: int) -> None:
    boundaries = marks_of(sizes)
    ahead = {tp(letter): OffsetRange(0, marks[-1]) for letter, marks in boundaries.items()}
    ends = limited(ahead, BatchLimits(bytes_max, messages_max), Boundaries(**boundaries))
    counts = [boundaries[letter].index(ends[tp(letter)]) for letter in boundaries]
    assert sum(counts) <= max(messages_max, len(counts))
    assert sum(ends.values()) <= max(bytes_max, sum(marks[1] for marks in boundaries.values()))
    assert min(counts) >= 1


def test_limits_pass_over_what_has_nothing_ahead_and_ask_in_few_rounds() -> None:
    frames = Boundaries()
    ahead = spans(a=(5, 5), b=(0, 100))
    assert limited(ahead, BatchLimits(), frames) == at(a=5, b=100)
    assert frames.rounds == 0
    assert limited(ahead, BatchLimits(bytes_max=35, messages_max=8), frames) == at(a=5, b=30)
    many = {TopicPartition("t", tp("a").partition.__class__(0, n)): OffsetRange(0, 1000) for n in range(1000)}
    frames.rounds = 0
    ends = limited(many, BatchLimits(bytes_max=50_000, messages_max=9000), frames)
    assert set(ends.values()) == {50}
    assert frames.rounds == 2


@given(st.lists(frames, min_size=1, max_size=6), st.integers(1, 500), st.none() | st.integers(1, 20))
def test_batches_under_limits_reach_the_end(sizes: list[list[int]], bytes_max: int, messages_max: int | None) -> None:
    boundaries = marks_of(sizes)
    there = available(**{letter: (0, marks[-1]) for letter, marks in boundaries.items()})
    here, batches = Progress(dict.fromkeys(there, 0)), 0
    while here.offsets != {where: one.offsets.end for where, one in there.items()}:
        plan = plan_batch(here, there, sentences=SENTENCES, report_loss=fail)
        here = plan.end(BatchLimits(bytes_max, messages_max), Boundaries(**boundaries))
        batches += 1
        assert batches <= sum(map(len, sizes))


def test_a_batch_waits_for_enough_messages_or_its_delay() -> None:
    clock, frames = ManualClock(), Boundaries(20)
    trigger_delay = TriggerDelay(clock, delay_s_max=60)
    assert not trigger_delay.should_wait(spans(a=(0, 20)), 5, frames)  # the first of a run
    assert not trigger_delay.should_wait(spans(a=(20, 20)), 5, frames)  # nothing to hold back
    for start, end, held_back in ((20, 40, True), (20, 100, True), (20, 120, False), (120, 140, True)):
        assert trigger_delay.should_wait(spans(a=(start, end)), 5, frames) is held_back
        clock.advance(1)
    clock.advance(57)
    assert trigger_delay.should_wait(spans(a=(120, 140)), 5, frames)
    clock.advance(1)
    assert not trigger_delay.should_wait(spans(a=(120, 140)), 5, frames)
    assert not trigger_delay.should_wait(spans(a=(140, 160)), None, frames)


def test_counting_for_a_delayed_batch_goes_on_where_it_was() -> None:
    asked: list[dict[TopicPartition, OffsetRange]] = []

    class Counting(Boundaries):
        def skip(self, wanted):
            asked.append({where: skip.span for where, skip in wanted.items()})
            return super().skip(wanted)

    clock, frames = ManualClock(), Counting(30)
    trigger_delay = TriggerDelay(clock, delay_s_max=60)
    assert not trigger_delay.should_wait(spans(a=(0, 30)), 5, frames)
    assert trigger_delay.should_wait(spans(a=(30, 120)), 5, frames)  # below 20 bytes a message: cannot be enough
    assert trigger_delay.should_wait(spans(a=(30, 150), b=(0, 0)), 5, frames)
    assert trigger_delay.should_wait(spans(a=(30, 150)), 5, frames)
    assert not trigger_delay.should_wait(spans(a=(30, 150), b=(0, 30)), 5, frames)
    assert asked == [spans(a=(30, 150)), spans(b=(0, 30))]


def test_a_partition_that_lost_its_end_is_counted_again() -> None:
    """Other messages come to where the lost ones were."""
    before = Boundaries(a=[0, 60, 120, 180, 240, 300])
    after = Boundaries(a=[0, 60, 120, 180, 200, 220, 300])
    trigger_delay = TriggerDelay(ManualClock(), delay_s_max=60)
    assert not trigger_delay.should_wait(spans(a=(0, 60)), 5, before)
    assert trigger_delay.should_wait(spans(a=(60, 300)), 5, before)
    assert trigger_delay.should_wait(spans(a=(60, 180)), 5, after)
    assert not trigger_delay.should_wait(spans(a=(60, 300)), 5, after)
