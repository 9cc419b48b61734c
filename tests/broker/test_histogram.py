"""Counting values into ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metaq_broker.histogram import BYTES, SECONDS, Histogram


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], [0, 0, 0]),
        ([0.5, 1.0], [2, 2, 2]),
        ([1.0001, 2.0], [0, 2, 2]),
        ([2.5, 1e9], [0, 0, 2]),
    ],
)
def test_a_value_belongs_to_the_first_bound_that_is_not_smaller(values: list[float], expected: list[int]) -> None:
    histogram = Histogram([1.0, 2.0])
    for value in values:
        histogram.observe(value)
    assert histogram.cumulative() == list(zip((1.0, 2.0, float("inf")), expected, strict=True))
    assert (histogram.count, histogram.total) == (len(values), sum(values))


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 1000))))
def test_many_at_a_time_count_as_one_by_one(observations: list[tuple[float, int]]) -> None:
    together, singly = Histogram(SECONDS), Histogram(SECONDS)
    for value, times in observations:
        together.observe(value, times)
        for _ in range(times):
            singly.observe(value)
    assert together.counts == singly.counts
    assert together.total == pytest.approx(singly.total)
    bounds, counts = zip(*together.cumulative(), strict=True)
    assert bounds == (*SECONDS, float("inf"))
    assert list(counts) == sorted(counts)
    assert counts[-1] == together.count


def test_the_bounds_ascend() -> None:
    for bounds in (SECONDS, BYTES):
        assert list(bounds) == sorted(set(bounds))
