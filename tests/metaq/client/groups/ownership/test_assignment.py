"""The division of partitions: what MetaQ's Java client computed for the same members, and what must always hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.groups.ownership.assignment import STRATEGIES, wanted_partitions
from metaq.model import Partition, TopicPartition

GOLDEN = Path(__file__).parents[4] / "golden" / "metaq" / "assignments.json"
"""Recorded of the Java client 1.4.6.2: each consumer's share, by its own strategy classes."""

CASES = json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['strategy']}-{len(case['owned'])}")
def test_shares_are_those_of_the_java_client(case: dict[str, dict[str, list[str]]]) -> None:
    members = {consumer: ["orders"] for consumer in case["owned"]}
    partitions = [Partition.parse(name) for share in case["owned"].values() for name in share]
    strategy = STRATEGIES[str(case["strategy"])]
    for consumer, share in case["owned"].items():
        found = wanted_partitions(strategy, consumer, members, {"orders": partitions})
        assert found == {TopicPartition("orders", Partition.parse(name)) for name in share}


def test_the_recording_has_both_strategies_and_numeric_order() -> None:
    assert {case["strategy"] for case in CASES} == {"range", "consistent"}
    assert any("0-10" in share for case in CASES for share in case["owned"].values())


@given(
    st.sets(st.text("abc-_.0123456789", min_size=1, max_size=20), min_size=1, max_size=8),
    st.sets(st.builds(Partition, st.integers(0, 1023), st.integers(0, 99)), max_size=40),
    st.sampled_from(sorted(STRATEGIES)),
)
def test_every_partition_has_exactly_one_owner(consumers: set[str], partitions: set[Partition], strategy: str) -> None:
    members = {consumer: ["t"] for consumer in consumers}
    shares = [wanted_partitions(STRATEGIES[strategy], one, members, {"t": partitions}) for one in consumers]
    assert sorted(where.partition for share in shares for where in share) == sorted(partitions)
    if strategy == "range":
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_consumers_of_other_topics_get_nothing_and_take_nothing() -> None:
    members = {"a": ["x"], "b": ["x", "y"]}
    partitions = {"x": [Partition(0, 0), Partition(0, 1)], "y": [Partition(0, 0)]}
    assert {str(one) for one in wanted_partitions(STRATEGIES["range"], "b", members, partitions)} == {"x/0-1", "y/0-0"}
    assert wanted_partitions(STRATEGIES["range"], "stranger", members, partitions) == set()


def test_a_joining_consumer_moves_only_partitions_to_itself_with_the_ring() -> None:
    partitions = {"t": [Partition(0, index) for index in range(64)]}

    def shares(consumers: Sequence[str]) -> dict[str, set[TopicPartition]]:
        members = {one: ["t"] for one in consumers}
        return {one: wanted_partitions(STRATEGIES["consistent"], one, members, partitions) for one in consumers}

    before, after = shares(["a", "b", "c"]), shares(["a", "b", "c", "d"])
    assert all(after[one] <= before[one] for one in before)


def test_a_strategy_of_the_program_is_checked() -> None:
    def wrong(topic: str, consumer: str, consumers: Sequence[str], partitions: Sequence[Partition]) -> list[Partition]:
        return [Partition(9, 9)]

    with pytest.raises(ValueError, match="assignment of 't': the strategy returned partitions"):
        wanted_partitions(wrong, "a", {"a": ["t"]}, {"t": [Partition(0, 0)]})
