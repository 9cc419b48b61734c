"""What brokers said they hold: what did not change is not read again."""

from __future__ import annotations

import pytest

from metaq.discovery.stats import StatsCache, incarnation_of_line
from metaq.errors import ProtocolError
from metaq.model import Address, OffsetRange, Partition, PartitionState, TopicPartition

AT = Address("b", 1)
LIFE = "a" * 32


def answer(**ends: int) -> str:
    lines = [f"{topic} 0 {LIFE} 0 {end}" for topic, end in ends.items()]
    return "".join(f"{line}\r\n" for line in ("STATS", *lines, "END"))


def available(**ends: int) -> dict[TopicPartition, PartitionState]:
    return {
        TopicPartition(topic, Partition(7, 0)): PartitionState(OffsetRange(0, end), LIFE) for topic, end in ends.items()
    }


class Reading:
    """Reads lines and remembers which."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> tuple[tuple[str, int], PartitionState]:
        self.lines.append(line)
        return incarnation_of_line(line)


def test_the_same_answer_gives_the_same_object() -> None:
    memory, reading = StatsCache(), Reading()
    first = memory.read(AT, 7, answer(a=10, b=20), reading)
    assert first == available(a=10, b=20)
    assert memory.read(AT, 7, answer(a=10, b=20), reading) is first
    assert len(reading.lines) == 2


def test_only_lines_that_are_new_are_read() -> None:
    memory, reading = StatsCache(), Reading()
    memory.read(AT, 7, answer(a=10, b=20, c=30), reading)
    reading.lines.clear()
    assert memory.read(AT, 7, answer(a=10, b=21, d=0), reading) == available(a=10, b=21, d=0)
    assert reading.lines == [f"b 0 {LIFE} 0 21", f"d 0 {LIFE} 0 0"]


def test_another_broker_behind_the_same_address_is_read_anew() -> None:
    memory = StatsCache()
    memory.read(AT, 3, answer(a=10), incarnation_of_line)
    assert memory.read(AT, 7, answer(a=10), incarnation_of_line) == available(a=10)


def test_each_broker_has_its_own_answer() -> None:
    memory, reading = StatsCache(), Reading()
    for _ in range(3):
        memory.read(AT, 7, answer(a=10), reading)
        memory.read(Address("b", 2), 8, answer(a=11), reading)
    assert len(reading.lines) == 2


def test_a_line_that_cannot_be_read_leaves_the_last_answer() -> None:
    memory = StatsCache()
    first = memory.read(AT, 7, answer(a=10), incarnation_of_line)
    with pytest.raises(ProtocolError, match="cannot be read"):
        memory.read(AT, 7, answer(a=10).replace("10\r\n", "ten\r\n"), incarnation_of_line)
    assert memory.read(AT, 7, answer(a=10), incarnation_of_line) is first
