"""Questions about frames, answered by brokers with and without the extensions: the same answers as from a list."""

from __future__ import annotations

import random

import pytest
from fix_planning import Boundaries
from metaq_harness import NO_EXTENSIONS, Harness

from metaq.errors import BrokerError, CorruptFrame, DataMissing
from metaq.model import OffsetRange, Partition, TopicPartition
from metaq.protocols.text.commands import GetOffset
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.positions import FrameLookup
from metaq_spark.options.table import Use
from metaq_spark.source.backend import Cuts, SkipAhead, Skipped

A, B = (TopicPartition("orders", Partition(broker, 0)) for broker in (0, 1))


@pytest.fixture(params=["ours", "java"])
def harness(request: pytest.FixtureRequest) -> Harness:
    settings = {"segment_bytes_max": 3000, "transfer_bytes_max": 700}
    return Harness(**settings) if request.param == "ours" else Harness(**settings, extensions=NO_EXTENSIONS)


def lookup_in(harness: Harness) -> FrameLookup:
    return Cluster(harness.options(Use.STREAM_READ), harness.pool, harness.clock).positions


def fill(harness: Harness, seed: int) -> dict[TopicPartition, list[int]]:
    """Messages of any size, most of them small, in two partitions; returns their boundaries."""
    chance, marks = random.Random(seed), {}
    for where in (A, B):
        marks[where] = [0]
        for _ in range(60):
            size = chance.choice([0, 1, 5, 40, 200, 80_000 if chance.random() < 0.1 else 10])
            marks[where].append(harness.put("orders", where.partition.broker_id, 0, bytes(size)))
    return marks


@pytest.mark.parametrize("seed", range(5))
def test_answers_are_those_of_a_list_of_boundaries(harness: Harness, seed: int) -> None:
    marks, chance = fill(harness, seed), random.Random(seed)
    asked = lookup_in(harness)
    for where, known in marks.items():
        ideal = Boundaries(a=known)  # the words of planning know one topic; the letter stands for this partition
        letter = TopicPartition("t", Partition(0, 0))
        starts = chance.sample(known[:-1], 10)
        ends = {start: ideal.message_ends([(letter, start)])[letter, start] for start in starts}
        assert asked.message_ends([(where, start) for start in starts]) == {(where, s): e for s, e in ends.items()}
        floor = chance.choice(known[:20])
        cuts = Cuts(floor, sorted(chance.randrange(floor, known[-1] + 1) for _ in range(12)))
        assert asked.boundaries({where: cuts})[where] == ideal.boundaries({letter: cuts})[letter]
        start, end = sorted(chance.sample(known, 2))
        for count in (1, 2, 7, 1000):
            skip = SkipAhead(OffsetRange(start, end), count)
            assert asked.skip({where: skip})[where] == ideal.skip({letter: skip})[letter]


@pytest.mark.parametrize("seed", range(5))
def test_one_skip_behind_the_other_ends_where_the_list_says(seed: int) -> None:
    """Some are cut, some reach the end, and then there are more messages: every guess is wrong now and then."""
    harness, chance = Harness(), random.Random(seed)
    marks, asked = fill(harness, seed), lookup_in(harness)
    at = dict.fromkeys(marks, 0)
    for _ in range(25):
        skips, expected = {}, {}
        for where, known in marks.items():
            if at[where] == len(known) - 1:
                known += [harness.put("orders", where.partition.broker_id, 0, bytes(size)) for size in (0, 50, 7)]
            end, count = chance.randint(at[where] + 1, len(known) - 1), chance.choice([1, 2, 5, 30])
            skips[where] = SkipAhead(OffsetRange(known[at[where]], known[end]), count)
            messages = min(count, end - at[where])
            at[where] += messages
            expected[where] = Skipped(known[at[where]], messages)
        assert asked.skip(skips) == expected
        for where, known in marks.items():
            assert asked.last_start(where, known[at[where]]) == known[at[where] - 1]
            assert asked.last_start(where, known[at[where] - 1]) is None


def test_questions_about_both_brokers_come_back_together(harness: Harness) -> None:
    marks = fill(harness, 9)
    asked = lookup_in(harness)
    skips = asked.skip({where: SkipAhead(OffsetRange(0, known[-1]), 5) for where, known in marks.items()})
    assert skips == {where: Skipped(known[5], 5) for where, known in marks.items()}
    cuts = asked.boundaries({where: Cuts(0, known[3:6]) for where, known in marks.items()})
    assert cuts == {where: known[3:6] for where, known in marks.items()}


def test_what_retention_has_taken_counts_from_the_start_of_the_log(harness: Harness) -> None:
    harness.put("orders", 0, 0, *[bytes(1480)] * 6)
    store = harness.brokers[0].partition("orders", 0)
    store.drop_segments(1)
    assert store.start == 3000
    asked = lookup_in(harness)
    assert asked.message_ends([(A, 0)]) == {(A, 0): 3000}
    assert asked.boundaries({A: Cuts(0, [100, 4000])})[A][1] in (0, 3000)
    skipped = asked.skip({A: SkipAhead(OffsetRange(0, 9000), 2)})[A]
    assert skipped.offset >= 3000
    assert 1 <= skipped.messages <= 2


def test_more_questions_than_a_connection_takes_at_once(harness: Harness) -> None:
    harness.put("orders", 0, 0, *[b"1234"] * 600)
    starts = [(A, 24 * n) for n in range(600)]
    assert lookup_in(harness).message_ends(starts) == {(where, start): start + 24 for where, start in starts}


def test_where_there_is_nothing_is_an_error(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1")
    asked = lookup_in(harness)
    with pytest.raises(DataMissing, match=r"orders/0-0.*no frame there"):
        asked.message_ends([(A, 21)])
    with pytest.raises(BrokerError, match="404"):
        asked.boundaries({B: Cuts(0, [10])})


def test_a_walk_that_meets_malformed_bytes_says_where() -> None:
    harness = Harness(extensions=NO_EXTENSIONS)
    harness.put("orders", 0, 0, b"good", b"evil")
    content = harness.brokers[0].partition("orders", 0).segments[0][1]
    content[24:28] = (-5).to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptFrame, match="orders partition 0 at offset 24: body length -5"):
        lookup_in(harness).skip({A: SkipAhead(OffsetRange(0, 48), 5)})


def test_damage_that_hides_messages_is_passed_over_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    harness.put("orders", 0, 0, *[b"1234"] * 10)
    broker = harness.brokers[0]
    plain = broker._position

    def position(store, query: GetOffset):
        # Messages 0 to 4 are damaged: any of them is where the damage begins.
        return 0 if query.mode == "message" and query.offset < 5 else plain(store, query)

    monkeypatch.setattr(broker, "_position", position)
    assert lookup_in(harness).skip({A: SkipAhead(OffsetRange(0, 240), 3)})[A] == Skipped(24, 3)
    assert lookup_in(harness).skip({A: SkipAhead(OffsetRange(0, 240), 6)})[A] == Skipped(144, 6)
