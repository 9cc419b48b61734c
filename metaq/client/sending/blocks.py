"""Blocks of frames: how they are sent to one broker, and the positions of their messages."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, repeat
from typing import Final, cast

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.puts import Receipt
from metaq.backends.metaq.session import Session
from metaq.client.records import Sent, sent_at
from metaq.client.sending.batches import MessageBatch, Outcomes
from metaq.errors import MetaqError, SendFailed
from metaq.formats.message_id import IDS_PER_MS, IdRange
from metaq.model import Partition
from metaq.net.retry import DEFAULT_POLICY, RetryPolicy

BLOCK_BYTES_MAX: Final = 256 << 10
"""Limit on bytes of one request; a longer message is sent alone."""
BLOCK_MESSAGES_MAX: Final = 1000
"""Limit on messages of one request."""

Block = MessageBatch[bytes, Sent]
"""Frames of one partition; the batch's ``queue`` is that partition."""


class BlockOutcomes:
    """Positions of a block's messages, computed from the receipt of the first. Each record is created on access."""

    __slots__ = ("_ids", "_offsets", "_partition", "_topic")

    def __init__(self, topic: str, partition: Partition, receipt: Receipt, sizes: Sequence[int]) -> None:
        self._topic, self._partition = topic, partition
        self._offsets = array("q", accumulate(sizes[:-1], initial=receipt.offset))
        self._ids = _consecutive(receipt.message_id, len(sizes))

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, row: int) -> Sent:
        return sent_at(self._topic, self._partition, self._offsets[row], self._ids[row])

    def __iter__(self) -> Iterator[Sent]:
        return map(sent_at, repeat(self._topic), repeat(self._partition), self._offsets, self._ids)


def _consecutive(first_id: int, count: int) -> Sequence[int]:
    """Return ids from ``first_id`` on; within one millisecond they are consecutive integers."""
    # a single id may have any form: another kind of broker may have made it
    if count == 1 or (first_id & IDS_PER_MS - 1) + count <= IDS_PER_MS:
        return range(first_id, first_id + count)
    return list(IdRange.starting_at(first_id, count))


class BlockWriter:
    """Sends the blocks of one topic to one broker, over a connection reserved for them until they are settled.

    ``policy``: how often in a row the session is reconnected.
    """

    def __init__(
        self, session: Session, topic: str, blocks: Sequence[Block], policy: RetryPolicy = DEFAULT_POLICY
    ) -> None:
        self._topic, self._blocks = topic, blocks
        self._writer = BatchWriter(session, topic, policy=policy)
        # Brokers without block puts store message by message and return the offset of the first one only.
        self._takes_blocks = self._writer.takes_blocks()
        self._receipts: Sequence[Receipt] = ()

    def write(self) -> None:
        """Send all blocks; the last ones may still be in flight on return. Raises as ``BatchWriter``."""
        for block in self._blocks:
            partition = partition_of(block)
            if self._takes_blocks:
                self._writer.write(partition.index, b"".join(block.messages), len(block.messages))
            else:
                for frame in block.messages:
                    self._writer.write(partition.index, frame, 1)

    def flush(self) -> None:
        """Wait for all acknowledgements. Raises as ``BatchWriter``."""
        self._receipts = self._writer.flush()

    def settle(self, failure: MetaqError | None) -> None:
        """Settle the blocks; ``failure`` is the reason why some are not acknowledged."""
        receipts = iter(self._receipts or self._writer.acknowledged)
        for block in self._blocks:
            outcomes = self._of_whole(block, receipts) if self._takes_blocks else self._of_each(block, receipts)
            settle_block(block, outcomes, failure)

    def _of_whole(self, block: Block, receipts: Iterator[Receipt]) -> Outcomes[Sent] | None:
        receipt = next(receipts, None)
        if receipt is None:
            return None
        return BlockOutcomes(self._topic, partition_of(block), receipt, list(map(len, block.messages)))

    def _of_each(self, block: Block, receipts: Iterator[Receipt]) -> Outcomes[Sent]:
        count, partition = len(block.messages), partition_of(block)
        sent: list[Sent | None] = [
            sent_at(self._topic, partition, receipt.offset, receipt.message_id) for receipt in islice(receipts, count)
        ]
        return sent + [None] * (count - len(sent))


def settle_block(block: Block, outcomes: Outcomes[Sent] | None, failure: MetaqError | None) -> None:
    """Settle a block. Without ``outcomes``, none of its messages is acknowledged, because of ``failure``.

    The exception of a message's future does not mention the other messages.
    """
    error = None
    if failure is not None:
        error = SendFailed(block.topic, reason_of(failure), failure.retryable, (None,))
        error.__cause__ = failure
    block.settle([None] * len(block.messages) if outcomes is None else outcomes, error)


def reason_of(failure: MetaqError) -> str:
    """Return the reason to give in a ``SendFailed`` caused by ``failure``."""
    return failure.reason if isinstance(failure, SendFailed) else str(failure)


def partition_of(block: Block) -> Partition:
    """Return the partition of a block.

    Raises:
        TypeError: The queue is another tuple that compares equal to a partition.
    """
    Partition.require(block.queue)
    return cast("Partition", block.queue)
