"""What brokers said they hold, so that what did not change is not read again.

A broker with thousands of partitions answers with thousands of lines, of which few or none differ from its last answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from metaq.discovery.stats import lines_of
from metaq.model import Address, Partition, PartitionState, TopicPartition

ReadLine = Callable[[str], tuple[tuple[str, int], PartitionState]]
"""Reads a line: topic and partition index, and what the partition holds."""


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    broker_id: int
    lines: dict[str, tuple[TopicPartition, PartitionState]]
    available: Mapping[TopicPartition, PartitionState]


class StatsCache:
    """The last answer of each broker."""

    def __init__(self) -> None:
        self._last: dict[Address, _Answer] = {}

    def read(
        self, address: Address, broker_id: int, text: str, read_line: ReadLine
    ) -> Mapping[TopicPartition, PartitionState]:
        """The partitions in ``text``, by lines that ``read_line`` reads; the same object as before for the same text.

        Raises:
            ProtocolError: It is no answer to ``stats``, or has a line that cannot be read.
        """
        last = self._last.get(address)
        if last is not None and last.broker_id == broker_id:
            if last.text == text:
                return last.available
            known = last.lines
        else:
            known = {}
        lines = {line: known.get(line) or _named(broker_id, *read_line(line)) for line in lines_of(text)}
        self._last[address] = answer = _Answer(text, broker_id, lines, dict(lines.values()))
        return answer.available


def _named(broker_id: int, where: tuple[str, int], available: PartitionState) -> tuple[TopicPartition, PartitionState]:
    topic, index = where
    return TopicPartition(topic, Partition(broker_id, index)), available
