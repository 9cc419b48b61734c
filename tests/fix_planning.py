"""Words for tables about planning: partitions as letters, all of topic ``t`` on broker 0; frames by their starts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping

from metaq.model import OffsetRange, Partition, PartitionState, TopicPartition
from metaq_spark.errors import DataLoss
from metaq_spark.source.backend import Cuts, MessageStart, SkipAhead, Skipped

LIVES = {name: name * 32 for name in "0123456789abcdef"}


def tp(letter: str) -> TopicPartition:
    return TopicPartition("t", Partition(0, ord(letter) - ord("a")))


def at(**offsets: int) -> dict[TopicPartition, int]:
    return {tp(letter): offset for letter, offset in offsets.items()}


def spans(**ranges: tuple[int, int]) -> dict[TopicPartition, OffsetRange]:
    return {tp(letter): OffsetRange(*span) for letter, span in ranges.items()}


def available(**ranges: tuple[int, int] | tuple[int, int, str]) -> dict[TopicPartition, PartitionState]:
    """What brokers hold: start, end and, if they tell, one digit for the incarnation."""
    return {
        tp(letter): PartitionState(OffsetRange(*span[:2]), LIVES[span[2]] if len(span) == 3 else None)
        for letter, span in ranges.items()
    }


def incarnations(**digits: str) -> dict[TopicPartition, str]:
    return {tp(letter): LIVES[digit] for letter, digit in digits.items()}


class Boundaries:
    """Frames of one size in every partition, or explicit boundaries; counts the rounds of questions."""

    offsets_per_message_min = 20

    def __init__(self, size: int = 10, **boundaries: list[int]) -> None:
        self.size, self.explicit, self.rounds = size, boundaries, 0

    def bytes_per_offset(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, float]:
        return dict.fromkeys(ranges, 1)

    def boundaries(self, asked: Mapping[TopicPartition, Cuts]) -> dict[TopicPartition, list[int]]:
        self.rounds += 1
        return {
            where: [max(cuts.floor, self._at_or_below(where, offset)) for offset in cuts.offsets]
            for where, cuts in asked.items()
        }

    def message_ends(self, starts: Collection[MessageStart]) -> dict[MessageStart, int]:
        self.rounds += 1
        return {(where, offset): self._after(where, offset) for where, offset in starts}

    def skip(self, asked: Mapping[TopicPartition, SkipAhead]) -> dict[TopicPartition, Skipped]:
        self.rounds += 1
        return {where: self._skip(where, skip) for where, skip in asked.items()}

    def messages(self, where: TopicPartition, span: OffsetRange) -> int:
        """How many frames begin in ``span``."""
        known = self._of(where)
        if known is None:
            return -(-span.end // self.size) - -(-span.start // self.size)
        return bisect_left(known, span.end) - bisect_left(known, span.start)

    def _of(self, where: TopicPartition) -> list[int] | None:
        return self.explicit.get(chr(ord("a") + where.partition.index))

    def _at_or_below(self, where: TopicPartition, offset: int) -> int:
        known = self._of(where)
        return offset // self.size * self.size if known is None else known[bisect_right(known, offset) - 1]

    def _after(self, where: TopicPartition, offset: int) -> int:
        known = self._of(where)
        return offset + self.size if known is None else known[known.index(offset) + 1]

    def _skip(self, where: TopicPartition, skip: SkipAhead) -> Skipped:
        offset, messages = skip.span.start, 0
        while offset < skip.span.end and messages < skip.messages_max:
            offset, messages = self._after(where, offset), messages + 1
        return Skipped(offset, messages)


def fail(what: str) -> None:
    raise DataLoss(what)
