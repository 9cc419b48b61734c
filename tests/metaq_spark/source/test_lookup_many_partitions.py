"""A stream over many partitions: what did not change is not computed again, and an idle query rests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from metaq_harness import Harness

from metaq.discovery import survey
from metaq.model import Partition, TopicPartition
from metaq.testing.manual_clock import ManualClock
from metaq_spark import offsets
from metaq_spark.errors import CheckpointError
from metaq_spark.offsets import Progress, ProgressMemory, read_progress, to_json
from metaq_spark.source.lookup import REST_PER_ANSWER, REST_S_MAX, REST_S_MIN, IdleBackoff
from metaq_spark.spark_version import ReadAllAvailable, ReadMaxBytes

COUNT = 1000
LIMIT = ReadMaxBytes(1 << 30)


class Calls:
    """Calls a function and counts how often."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.count = function, 0

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        return self.function(*args)


@pytest.fixture
def harness() -> Harness:
    harness = Harness(orders=COUNT)
    for index in range(COUNT):
        harness.put("orders", 0, index, b"first")
    return harness


def test_what_did_not_change_is_not_computed_again(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, read, written = Calls(survey.incarnation_of_line), Calls(read_progress), Calls(to_json)
    monkeypatch.setattr(survey, "incarnation_of_line", lines)
    monkeypatch.setattr(offsets, "read_progress", read)
    monkeypatch.setattr(offsets, "to_json", written)
    reader = harness.stream()
    position = json.loads(json.dumps(reader.initialOffset()))
    assert (lines.count, read.count, written.count) == (COUNT, 0, 1)
    for _ in range(10):  # idle
        harness.clock.advance(1)
        position = json.loads(json.dumps(position))  # as Spark hands it back each time
        assert reader.latestOffset(position, LIMIT) == position
        reader.reportLatestOffset()
    assert (lines.count, read.count) == (COUNT, 0)
    assert written.count <= 2

    harness.put("orders", 0, 7, b"second")
    end, values = harness.micro_batch(reader, position)
    assert values == [b"second"]
    reader.commit(json.loads(json.dumps(end)))
    harness.clock.advance(1)
    assert reader.latestOffset(json.loads(json.dumps(end)), LIMIT) == end
    assert (lines.count, read.count) == (COUNT + 1, 0)


def test_a_query_that_goes_on_reads_its_offset_once(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    position = harness.stream().initialOffset()
    read = Calls(read_progress)
    monkeypatch.setattr(offsets, "read_progress", read)
    reader = harness.stream()
    for _ in range(5):
        harness.clock.advance(1)
        assert reader.latestOffset(position, LIMIT) == position
    assert read.count == 1


def test_every_partition_that_moves_is_still_found(harness: Harness) -> None:
    reader = harness.stream()
    position = reader.initialOffset()
    for index in (COUNT - 1, 0, 500):
        harness.put("orders", 0, index, str(index).encode())
    position, values = harness.micro_batch(reader, position)
    assert values == [b"0", b"500", str(COUNT - 1).encode()]
    harness.brokers[0].partition("orders", 3)
    harness.put("orders", 0, 3, b"a", b"b")
    assert harness.micro_batch(reader, position)[1] == [b"a", b"b"]


class TestProgressMemory:
    WHERE = TopicPartition("t", Partition(0, 0))

    def test_what_was_written_is_known_when_it_comes_back(self) -> None:
        memory, progress = ProgressMemory(), Progress({self.WHERE: 5}, {self.WHERE: "a" * 32})
        tree = memory.write(progress)
        assert tree == to_json(progress.offsets, progress.incarnations)
        assert memory.read(json.loads(json.dumps(tree))) is progress
        assert memory.write(progress) == tree

    def test_what_a_caller_changes_is_another_offset(self) -> None:
        memory = ProgressMemory()
        tree = memory.write(Progress({self.WHERE: 5}))
        tree["topics"]["t"]["0-0"] += 1
        assert memory.read(tree) == Progress({self.WHERE: 6})
        tree["topics"]["t"]["0-0"] += 1
        assert memory.read(tree) == Progress({self.WHERE: 7})
        assert memory.read(to_json({self.WHERE: 5})) == Progress({self.WHERE: 5})

    def test_any_difference_counts(self) -> None:
        memory = ProgressMemory()
        memory.write(Progress({self.WHERE: 5}, {self.WHERE: "a" * 32}))
        for other in (Progress({self.WHERE: 6}, {self.WHERE: "a" * 32}), Progress({self.WHERE: 5}), Progress({})):
            assert memory.read(to_json(other.offsets, other.incarnations)) == other

    def test_a_move_by_hand_is_not_taken_for_the_same_offset(self) -> None:
        memory = ProgressMemory()
        tree = memory.write(Progress({self.WHERE: 5}))
        assert memory.read(tree | {"moved": True}).moved
        assert not memory.read(tree).moved

    def test_a_broken_offset_is_refused_each_time(self) -> None:
        memory = ProgressMemory()
        for _ in range(2):
            with pytest.raises(CheckpointError):
                memory.read({"v": 99})

    def test_only_the_last_few_are_kept(self) -> None:
        memory = ProgressMemory()
        trees = [memory.write(Progress({self.WHERE: end})) for end in range(100)]
        assert memory.read(trees[-1]) is memory.read(trees[-1])
        assert len(memory._known) == 4


class TestIdleBackoff:
    def rests(self, *cpu_s: float, idle: bool = True) -> list[float]:
        """How long the query rests in answers that take so many CPU seconds each."""
        clock, used = ManualClock(), 0.0
        idling = IdleBackoff(clock, lambda: used)
        idling.rest()
        for seconds in cpu_s:
            used += seconds
            idling.rest() if idle else idling.reset()
        return clock.slept_s

    def test_in_proportion_to_what_an_answer_takes(self) -> None:
        assert self.rests(0.005, 0.002) == pytest.approx([0.005 * REST_PER_ANSWER, 0.002 * REST_PER_ANSWER])

    def test_never_long(self) -> None:
        assert self.rests(10.0) == [REST_S_MAX]

    def test_not_where_answers_are_cheap(self) -> None:
        assert self.rests(REST_S_MIN / REST_PER_ANSWER * 0.9) == []

    def test_not_before_a_batch_nor_right_after_it(self) -> None:
        assert self.rests(0.01, 0.01, idle=False) == []
        clock, used = ManualClock(), 0.0
        idling = IdleBackoff(clock, lambda: used)
        idling.reset()
        used = 5.0
        idling.rest()
        assert clock.slept_s == []

    def test_a_run_that_ends_does_not_rest(self, harness: Harness) -> None:
        reader = harness.stream()
        position = reader.initialOffset()
        reader._idling = IdleBackoff(harness.clock, iter(range(100)).__next__)
        for _ in range(5):
            reader.latestOffset(position, ReadAllAvailable())
        assert harness.clock.slept_s == []
        for _ in range(5):
            reader.latestOffset(position, LIMIT)
        assert harness.clock.slept_s == [REST_S_MAX] * 4
