"""Ranges that are asked for together: whatever is wrong with one, the read says and gives what it does alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from metaq_harness import Harness

from metaq.errors import CorruptFrame, MetaqError
from metaq.model import Address, OffsetRange, Partition, TopicPartition
from metaq.protocols.text.commands import Command, Get, Reply, Result, Value
from metaq_spark.backends.metaq.partition_reader import RangePartition
from metaq_spark.backends.metaq.small_ranges import conversations, read_small
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.errors import DataLoss, ReadFailed
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.tasks import RangeGroup

PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]
VICTIM = (0, 1)


def filled(**settings: object) -> Harness:
    """Every partition of ``orders`` with three messages."""
    harness = Harness(**settings)
    for broker, index in PLACES:
        harness.put("orders", broker, index, *(f"{broker}-{index} {n}".encode() for n in range(3)))
    return harness


def planned(harness: Harness, **options: str) -> tuple[BatchReader, RangeGroup]:
    reader = BatchReader(MetaQSource(harness.options(Use.BATCH_READ, **options), harness.pool, harness.clock))
    [task] = reader.partitions()
    assert isinstance(task, RangeGroup)
    return reader, task


def damaged(harness: Harness) -> None:
    harness.brokers[0].partition("orders", 1).segments[0][1][25] ^= 1


def made_again(harness: Harness) -> None:
    harness.brokers[0].recreate("orders", 1)
    harness.put("orders", *VICTIM, *[b"another life"] * 3)


def answers_get(harness: Harness, answer: Callable[[Get, Reply | None], Reply | None]) -> None:
    """Let broker 0 answer the first get of the victim with ``answer``, and later ones as usual."""
    broker, left = harness.brokers[0], [1]
    usual = broker.answer

    def changed(command: object) -> Reply | None:
        reply = usual(command)  # type: ignore[arg-type]
        if isinstance(command, Get) and command.partition == 1 and left:
            left.pop()
            return answer(command, reply)
        return reply

    broker.answer = changed  # type: ignore[method-assign]


def flipped(data: bytes) -> bytes:
    return data[:25] + bytes([data[25] ^ 1]) + data[26:]


FLEETING = {
    "a short reply": lambda get, reply: Value(reply.data[:30], get.opaque),
    "a refusal": lambda get, reply: Result(500, "busy", get.opaque),
    "nothing there": lambda get, reply: Result(404, "not yet", get.opaque),
    "moved nowhere": lambda get, reply: Result(301, str(get.offset), get.opaque),
    "a closed connection": lambda get, reply: None,
    "a flipped bit": lambda get, reply: Value(flipped(reply.data), get.opaque),
}


@pytest.mark.parametrize("answer", FLEETING.values(), ids=FLEETING)
def test_what_goes_wrong_once_is_asked_again(answer: Callable[[Get, Reply | None], Reply | None]) -> None:
    harness = filled()
    expected = [f"{broker}-{index} {n}".encode() for broker, index in PLACES for n in range(3)]
    reader, task = planned(harness)
    answers_get(harness, answer)
    assert harness.values(reader, [task]) == expected


def test_a_broker_that_restarts_in_between_is_waited_for() -> None:
    harness = filled()
    reader, task = planned(harness)
    harness.brokers[0].kill()
    harness.brokers[0].start()
    assert len(harness.values(reader, [task])) == 12


@pytest.mark.parametrize("options", [{"retries": "2"}, {"retries": "2", "messageTypes": "a"}])
@pytest.mark.parametrize("together", [True, False])
def test_an_answer_that_is_always_lost_is_tried_as_often_as_said(options: dict[str, str], together: bool) -> None:
    harness = filled(extensions=frozenset())
    reader, task = planned(harness, retryIntervalMs="50", **options)
    broker, gets = harness.brokers[0], list[Get]()

    def cut(command: Command) -> None:
        if isinstance(command, Get):
            gets.extend([command] if command.partition == 0 else [])
            broker.kill()
            broker.start()

    broker.before_command = cut
    with pytest.raises(ReadFailed, match=r"orders/0-0 could not be read from offset 0 on: .* tried 3 times in a row"):
        harness.values(reader, [task] if together else task.parts)
    assert len(gets) == 3
    assert harness.clock.slept_s == [0.05, 0.1]


@pytest.mark.parametrize(("harm", "error"), [(damaged, CorruptFrame), (made_again, DataLoss)])
def test_what_stays_wrong_is_reported_as_ever(harm: Callable[[Harness], None], error: type[MetaqError]) -> None:
    harness = filled()
    reader, task = planned(harness)
    harm(harness)
    with pytest.raises(error, match=re.escape("orders/0-1")):
        harness.values(reader, [task])


@pytest.mark.parametrize("harm", [damaged, made_again])
def test_accepted_harm_gives_the_rows_that_are_read_alone(harm: Callable[[Harness], None]) -> None:
    accepted = {"onCorrupt": "skip", "failOnDataLoss": "false"}
    harness = filled()
    reader, task = planned(harness, **accepted)
    harm(harness)
    rows = harness.values(reader, [task])
    assert rows == harness.values(reader, task.parts)
    assert 9 <= len(rows) < 12


def test_a_java_broker_is_asked_in_one_go_too() -> None:
    harness = filled(extensions=frozenset())
    reader, task = planned(harness)
    assert [part.incarnation for part in task.parts] == [None] * 4
    assert read_small(task.parts, reader._source.options, harness.pool).keys() == set(task.parts)
    assert len(harness.values(reader, [task])) == 12


def test_types_are_left_to_the_broker_and_cut_ranges_to_the_usual_way() -> None:
    harness = filled()
    _, task = planned(harness)
    for options in ({"messageTypes": "a"}, {"pushFilters": "true"}):
        assert read_small(task.parts, harness.options(Use.BATCH_READ, **options), harness.pool) == {}


def part(broker: str, size: int, index: int = 0) -> RangePartition:
    return RangePartition(TopicPartition("t", Partition(0, index)), Address(broker, 1), OffsetRange(0, size))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], []),
        ([("a", 4), ("a", 6)], [[4, 6]]),
        ([("a", 4), ("a", 7)], [[4], [7]]),
        ([("a", 4), ("b", 4), ("b", 5), ("a", 1)], [[4], [4, 5], [1]]),
        ([("a", 4), ("a", 11), ("a", 5)], [[4, 5]]),
        ([("a", 11)], []),
    ],
)
def test_conversations(parts: list[tuple[str, int]], expected: list[list[int]]) -> None:
    asked = conversations([part(broker, size) for broker, size in parts], 10)
    assert [[len(each.offsets) for each in group] for group in asked] == expected
