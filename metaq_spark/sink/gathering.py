"""The blocks of a task that are not sent yet: which partition's rows wait, how much and how long.

A record batch has too few rows for large blocks as soon as keys spread it over partitions. So a partition's block stays
open over record batches until it is full, unless all of them together take too much memory or have waited too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from metaq.model import TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_spark.columns.blocks import Block, OpenBlock

OPEN_BYTES_MAX: Final = 8 << 20
"""What the open blocks of a task may take between two record batches."""

OPEN_S_MAX: Final = 1.0
"""How old an open block may be when a record batch has been dealt with. Spark may let the task wait for the next."""


class OpenBlocks:
    """One open block for each partition that was written to, with the bounds that the options give to a block."""

    def __init__(self, block_bytes: int, block_messages: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._block_bytes, self._block_messages, self._clock = block_bytes, block_messages, clock
        self._open: dict[TopicPartition, OpenBlock] = {}
        self._since_s = clock.monotonic()

    def of(self, target: TopicPartition) -> OpenBlock:
        """The open block of a partition."""
        block = self._open.get(target)
        if block is None:
            block = self._open[target] = OpenBlock(self._block_bytes, self._block_messages)
        return block

    def surplus(self) -> Iterator[tuple[TopicPartition, Block]]:
        """Take what must not wait for more rows: everything after ``OPEN_S_MAX``, else the largest ones until half of
        ``OPEN_BYTES_MAX`` is free again."""
        if self._clock.monotonic() - self._since_s >= OPEN_S_MAX:
            yield from self.rest()
            return
        buffered_bytes = sum(len(block.buffer) for block in self._open.values())
        if buffered_bytes > OPEN_BYTES_MAX:
            for target, block in sorted(self._open.items(), key=lambda item: -item[1].used):
                buffered_bytes -= len(block.buffer)
                del self._open[target]
                if block.count:
                    yield target, block.take()
                if buffered_bytes <= OPEN_BYTES_MAX // 2:
                    return

    def rest(self) -> Iterator[tuple[TopicPartition, Block]]:
        """Take everything, in the order in which the partitions came."""
        blocks, self._open = self._open, {}
        self._since_s = self._clock.monotonic()
        for target, block in blocks.items():
            if block.count:
                yield target, block.take()
