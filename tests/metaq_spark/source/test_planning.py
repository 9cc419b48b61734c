"""Where micro-batches start and end, as tables. Partitions are written as letters, incarnations as digits."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from fix_planning import Boundaries, at, available, fail, incarnations, spans, tp
from hypothesis import given
from hypothesis import strategies as st

from metaq.model import OffsetRange, PartitionState, TopicPartition
from metaq_spark.backends.metaq.source import SENTENCES
from metaq_spark.errors import DataLoss
from metaq_spark.offsets import AvailableRanges, Offsets, Progress
from metaq_spark.source.limits import BatchLimits
from metaq_spark.source.planning import Plan, plan_batch, ranges_between, suspect, waited_for


def end_of(plan: Plan, bytes_max: int | None = None) -> Progress:
    return plan.end(BatchLimits(bytes_max), Boundaries())


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
    found = ranges_between(Progress(start), Progress(end))
    assert found == ranges
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    ("before", "after", "ranges"),
    [
        (incarnations(a="1"), incarnations(a="1"), spans(a=(5, 9))),
        # the broker began to tell, or stopped telling: the old offset is all there is to go by
        ({}, incarnations(a="1"), spans(a=(5, 9))),
        (incarnations(a="1"), incarnations(a="2"), {}),
    ],
)
def test_ranges_of_two_incarnations_are_not_connected(
    before: dict[TopicPartition, str], after: dict[TopicPartition, str], ranges: object
) -> None:
    assert ranges_between(Progress(at(a=5), before), Progress(at(a=9), after)) == ranges


@pytest.mark.parametrize(
    ("start", "found", "ceiling", "bytes_max", "end"),
    [
        # no limit: everything
        (at(a=0, b=5), available(a=(0, 100), b=(0, 5)), None, None, at(a=100, b=5)),
        # the lookup came without b: it stays, it is not forgotten
        (at(a=0, b=5), available(a=(0, 100)), None, None, at(a=100, b=5)),
        (at(a=0, b=5), {}, None, 10, at(a=0, b=5)),
        # b is new: noted at its first byte, read with the next batch
        (at(a=0), available(a=(0, 100), b=(70, 90)), None, None, at(a=100, b=70)),
        ({}, available(a=(0, 100)), None, None, at(a=0)),
        # a limit that is large enough changes nothing
        (at(a=0), available(a=(0, 100)), None, 100, at(a=100)),
        (at(a=0), available(a=(0, 100)), None, 99, at(a=90)),
        (at(a=0, b=0), available(a=(0, 100), b=(0, 300)), None, 100, at(a=20, b=70)),
        # at least one message of each
        (at(a=0, b=0), available(a=(0, 100), b=(0, 300)), None, 1, at(a=10, b=10)),
        # AvailableNow: not beyond the ceiling, and nothing that it does not name
        (at(a=0), available(a=(0, 100), b=(0, 9)), at(a=60), None, at(a=60)),
        (at(a=0), available(a=(0, 100)), at(a=60), 25, at(a=20)),
        (at(a=60), available(a=(0, 100)), at(a=60), 25, at(a=60)),
        # a start behind the ceiling (latest, looked up later) never goes back
        (at(a=80), available(a=(0, 100)), at(a=60), None, at(a=80)),
        (at(a=0), available(a=(0, 100), b=(20, 50)), at(a=60, b=40), None, at(a=60, b=20)),
        (at(a=60, b=20), available(a=(0, 100), b=(20, 50)), at(a=60, b=40), None, at(a=60, b=40)),
        # it ends before the place that was read: it stays there for a while
        (at(a=120, b=1), available(a=(0, 0), b=(0, 7)), None, None, at(a=120, b=7)),
    ],
)
def test_batches(
    start: dict[TopicPartition, int],
    found: AvailableRanges,
    ceiling: dict[TopicPartition, int] | None,
    bytes_max: int | None,
    end: dict[TopicPartition, int],
) -> None:
    limit = None if ceiling is None else Progress(ceiling)
    planned = end_of(
        plan_batch(Progress(start), found, ceiling=limit, sentences=SENTENCES, report_loss=fail), bytes_max
    )
    assert planned.offsets == end
    assert planned.incarnations == {}


@pytest.mark.parametrize(
    ("start", "found", "words", "end"),
    [
        (at(a=5), available(a=(30, 100)), "offset 5 was to be read next, but the broker holds [30, 100)", at(a=100)),
        (at(a=120), available(a=(0, 100)), "deleted and made again", at(a=100)),
        (at(a=120, b=1), available(a=(0, 0), b=(0, 7)), "t/0-0", at(a=0, b=7)),
        (at(a=5, b=1), available(b=(0, 7)), "t/0-0: the brokers do not list it any more", at(a=5, b=7)),
    ],
)
def test_lost_data_is_reported_and_if_accepted_passed_over(
    start: dict[TopicPartition, int], found: AvailableRanges, words: str, end: dict[TopicPartition, int]
) -> None:
    known, overdue = Progress(start), suspect(Progress(start), found)
    with pytest.raises(DataLoss) as caught:
        plan_batch(known, found, overdue=overdue, sentences=SENTENCES, report_loss=fail)
    assert words in str(caught.value)
    assert "failOnDataLoss" in str(caught.value)
    accepted: list[str] = []
    planned = plan_batch(known, found, overdue=overdue, sentences=SENTENCES, report_loss=accepted.append)
    assert end_of(planned).offsets == end
    assert len(accepted) == 1
    assert planned.passed_over == ("list" not in words)


def test_accepted_loss_counts_only_what_is_left_against_the_limit() -> None:
    plan = plan_batch(Progress(at(a=0)), available(a=(1000, 2000)), sentences=SENTENCES, report_loss=lambda what: None)
    assert end_of(plan, 100).offsets == at(a=1100)


@pytest.mark.parametrize(
    ("incarnation", "found", "offsets", "after"),
    [
        # the same life: read on; one that begins to tell, or stops telling
        ("1", available(a=(0, 100, "1")), at(a=100), incarnations(a="1")),
        ("", available(a=(0, 100, "1")), at(a=100), incarnations(a="1")),
        ("1", available(a=(0, 100)), at(a=100), incarnations(a="1")),
        # noted at its first byte: new to the query
        (None, available(a=(30, 100, "1")), at(a=30), incarnations(a="1")),
    ],
)
def test_incarnations_travel_along(
    incarnation: str | None, found: AvailableRanges, offsets: Offsets, after: object
) -> None:
    known = Progress({} if incarnation is None else at(a=50), incarnations(a=incarnation) if incarnation else {})
    planned = end_of(plan_batch(known, found, sentences=SENTENCES, report_loss=fail))
    assert planned == Progress(offsets, after)


@pytest.mark.parametrize("found", [available(a=(0, 20, "2")), available(a=(0, 50, "2")), available(a=(0, 900, "2"))])
def test_a_recreated_partition_is_loss_or_read_from_its_first_byte(found: AvailableRanges) -> None:
    known = Progress(at(a=50), incarnations(a="1"))
    assert suspect(known, found) == set()  # there is nothing to wait for
    with pytest.raises(DataLoss, match="another incarnation: the topic was deleted and made again"):
        plan_batch(known, found, sentences=SENTENCES, report_loss=fail)
    noted = end_of(plan_batch(known, found, sentences=SENTENCES, report_loss=lambda what: None))
    assert noted == Progress(at(a=0), incarnations(a="2"))
    assert ranges_between(known, noted) == {}
    then = end_of(plan_batch(noted, found, sentences=SENTENCES, report_loss=fail))
    assert ranges_between(noted, then) == {tp("a"): found[tp("a")].offsets}


def test_a_topic_recreated_during_available_now_is_left_for_later() -> None:
    known = ceiling = Progress(at(a=50), incarnations(a="1"))
    again = available(a=(0, 900, "2"))
    with pytest.raises(DataLoss, match="another incarnation"):
        plan_batch(known, again, ceiling=ceiling, sentences=SENTENCES, report_loss=fail)
    noted = end_of(plan_batch(known, again, ceiling=ceiling, sentences=SENTENCES, report_loss=lambda what: None))
    assert noted == Progress(at(a=0), incarnations(a="2"))
    assert end_of(plan_batch(noted, again, ceiling=ceiling, sentences=SENTENCES, report_loss=fail)) == noted


def test_since_when_partitions_are_unreachable() -> None:
    known = Progress(at(a=10, b=10, c=10, d=10))
    found = available(a=(0, 10), b=(0, 9), c=(20, 30))
    assert suspect(known, found) == {tp("b"), tp("d")}
    first = waited_for({}, [tp("b"), tp("d")], 5.0)
    assert first == {tp("b"): 5.0, tp("d"): 5.0}
    second = waited_for(first, [tp("b"), tp("c")], 8.0)
    assert second == {tp("b"): 5.0, tp("c"): 8.0}
    assert waited_for(second, [tp("d")], 9.0) == {tp("d"): 9.0}  # it had recovered in between


letters = st.sampled_from("abcd")
digits = st.sampled_from(["", "1", "2"])
positions = st.dictionaries(letters, st.tuples(st.integers(0, 60), digits))
available_ranges = st.dictionaries(letters, st.tuples(st.integers(0, 40), st.integers(0, 40), digits))


@given(positions, available_ranges, st.sets(letters))
def test_no_partition_is_forgotten_and_no_range_leaves_the_log(
    places: dict[str, tuple[int, str]], there: dict[str, tuple[int, int, str]], late: set[str]
) -> None:
    known = Progress(
        {tp(letter): offset for letter, (offset, _) in places.items()},
        incarnations(**{letter: digit for letter, (_, digit) in places.items() if digit}),
    )
    found: dict[TopicPartition, PartitionState] = available(
        **{letter: (start, start + size, *digit) for letter, (start, size, digit) in there.items()}
    )
    planned = end_of(
        plan_batch(known, found, overdue=set(map(tp, late)), sentences=SENTENCES, report_loss=lambda what: None)
    )
    assert planned.offsets.keys() == known.offsets.keys() | found.keys()
    for where, span in ranges_between(known, planned).items():
        assert span == OffsetRange(known.offsets[where], found[where].offsets.end)
    # Whatever was lost, the next batch goes on from there without another word of it.
    plan_batch(planned, found, overdue=set(map(tp, late)) & found.keys(), sentences=SENTENCES, report_loss=fail)
