"""Which ordinals are covered: against a set."""

from __future__ import annotations

from random import Random

from examples import in_one_test
from metaq_broker.rocketmq.key_index.coverage import Coverage
from metaq_broker.rocketmq.key_index.run_file import Covered


def test_ranges_that_meet_are_one() -> None:
    coverage = Coverage([Covered("orders", 0, 0, 5), Covered("orders", 0, 5, 9), Covered("orders", 1, 3, 4)])
    assert list(coverage) == [Covered("orders", 0, 0, 9), Covered("orders", 1, 3, 4)]
    assert (coverage.end("orders", 0), coverage.end("bills", 0)) == (9, None)


def test_nothing_is_covered() -> None:
    coverage = Coverage([Covered("orders", 0, 5, 5)])
    assert not coverage
    assert coverage.gaps("orders", 0, 3, 8) == [(3, 8)]
    assert coverage.gaps("orders", 0, 8, 8) == []


@in_one_test("seed", range(30))
def test_against_a_set(seed: int) -> None:
    random, coverage, covered = Random(seed), Coverage(), set[int]()
    for _ in range(20):
        first = random.randrange(100)
        end = first + random.randrange(12)
        coverage.add(Covered("orders", 0, first, end))
        covered |= set(range(first, end))
        low, high = sorted((random.randrange(110), random.randrange(110)))
        gaps = coverage.gaps("orders", 0, low, high)
        assert {ordinal for first, end in gaps for ordinal in range(first, end)} == set(range(low, high)) - covered
        assert all(first < end for first, end in gaps)
