"""Blocks of frames: how they are sent to one broker, and the positions of their messages."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, repeat, takewhile
from typing import Final, cast

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.puts import Receipt
from metaq.backends.metaq.session import Session
from metaq.client.records import Sent, sent_at
from metaq.client.sending.batches import MessageBatch, Outcomes
from metaq.errors import BrokerError, MetaqError, SendFailed
from metaq.formats.frames import HEADER_BYTES, encode_body
from metaq.formats.message_id import IDS_PER_MS, IdRange
from metaq.model import Message, Partition
from metaq.net.retry import DEFAULT_POLICY, RetryPolicy

BLOCK_BYTES_MAX: Final = 256 << 10
"""Limit on bytes of one request; a longer message is sent alone."""
BLOCK_MESSAGES_MAX: Final = 1000
"""Limit on messages of one request."""

_UNSENT: Final = "not sent, because an earlier block of the partition was not acknowledged: "

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

    A block that is refused does not affect the other partitions. Blocks of its own partition that are in flight behind
    it may be stored; no later ones are sent. After any other error, no more blocks are sent. ``policy``: how often in a
    row the session is reconnected.

    Raises:
        MetaqError: The broker could not be asked whether it takes blocks.
    """

    def __init__(
        self, session: Session, topic: str, blocks: Sequence[Block], policy: RetryPolicy = DEFAULT_POLICY
    ) -> None:
        self._session, self._topic, self._blocks, self._policy = session, topic, blocks, policy
        self._writer = BatchWriter(session, topic, policy=policy)
        # Brokers without block puts store message by message and return the offset of the first one only.
        self._takes_blocks = self._writer.takes_blocks()
        self._written: list[Block] = []
        """The block of each ``write`` of the writer."""
        self._receipts: defaultdict[Block, list[Receipt]] = defaultdict(list)
        self._refused: dict[Block, MetaqError] = {}
        """Blocks that were sent and not acknowledged, each with its own error."""
        self._ended: dict[Hashable, MetaqError] = {}
        """Partitions that get no more blocks."""
        self._failure: MetaqError | None = None
        """Why the broker was given up."""

    def write(self) -> None:
        """Send all blocks; the last ones may still be in flight on return. ``settle`` returns what fails."""
        for block in self._blocks:
            for frames, count in self._requests(block):
                while not (self._failure or block.queue in self._ended or self._write(block, frames, count)):
                    pass  # a block of another partition was refused

    def _requests(self, block: Block) -> Iterable[tuple[bytes, int]]:
        if self._takes_blocks:
            return [(b"".join(block.messages), len(block.messages))]
        return ((frame, 1) for frame in block.messages)

    def _write(self, block: Block, frames: bytes, count: int) -> bool:
        index = partition_of(block).index
        self._written.append(block)
        return self._carry_out(lambda: self._writer.write(index, frames, count), writes=1)

    def flush(self) -> None:
        """Wait for all acknowledgements. ``settle`` returns what fails."""
        receipts: list[Receipt] = []
        if self._failure is None and self._carry_out(lambda: receipts.extend(self._writer.flush()), writes=0):
            self._note(receipts)

    def _carry_out(self, step: Callable[[], object], writes: int) -> bool:
        """Return whether a step of the writer succeeded; after a refusal, a new writer serves the other partitions.

        ``writes``: how many blocks the step itself writes. The caller writes them again if they were not sent.
        """
        try:
            step()
        except MetaqError as error:
            outcomes = self._writer.outcomes
            has_dropped = None in outcomes[: len(outcomes) - writes]
            self._note(outcomes)
            # After any other error, the next connection may be to a broker that does not take blocks.
            is_refusal = isinstance(error, BrokerError) and not error.away and error in self._refused.values()
            if has_dropped or not is_refusal:
                self._failure = error
            self._writer = BatchWriter(self._session, self._topic, policy=self._policy)
            return False
        return True

    def _note(self, outcomes: Iterable[Receipt | MetaqError | None]) -> None:
        for block, outcome in zip(self._written, outcomes, strict=True):
            if isinstance(outcome, Receipt):
                self._receipts[block].append(outcome)
            elif outcome is not None:
                self._refused[block] = outcome
                self._ended.setdefault(block.queue, outcome)
        self._written.clear()

    def settle(self) -> MetaqError | None:
        """Settle the blocks, each with its own positions or error; return the first error."""
        first: MetaqError | None = None
        for block in self._blocks:
            receipts = self._receipts[block]
            own = self._refused.get(block)
            failure = own or self._ended.get(block.queue) or self._failure
            if len(receipts) < (1 if self._takes_blocks else len(block.messages)):
                first = first or failure
            outcomes = self._positions(block, receipts)
            if own is None and block.queue in self._ended:
                settle_block(block, outcomes, failure, relation=_UNSENT)
            else:
                settle_block(block, outcomes, failure, unanswered=own is not None and _is_unanswered(own))
        return first

    def _positions(self, block: Block, receipts: Sequence[Receipt]) -> Outcomes[Sent] | None:
        """Return where the messages of a block are; ``None`` if none is acknowledged."""
        if not receipts:
            return None
        partition = partition_of(block)
        if self._takes_blocks:
            return BlockOutcomes(self._topic, partition, receipts[0], list(map(len, block.messages)))
        sent: list[Sent | None] = [sent_at(self._topic, partition, one.offset, one.message_id) for one in receipts]
        return sent + [None] * (len(block.messages) - len(sent))


def _is_unanswered(failure: MetaqError) -> bool:
    """Whether a block that was sent, and not acknowledged because of ``failure``, may be stored."""
    return not isinstance(failure, BrokerError) or failure.may_be_stored


def settle_block(
    block: Block,
    outcomes: Outcomes[Sent] | None,
    failure: MetaqError | None,
    *,
    relation: str = "",
    unanswered: bool = False,
) -> None:
    """Settle a block. Without ``outcomes``, none of its messages is acknowledged, because of ``failure``.

    The exception of a message's future does not mention the other messages. ``relation`` precedes the reason.
    ``unanswered``: it may be stored.
    """
    error = None
    if failure is not None:
        error = SendFailed(block.topic, relation + reason_of(failure), failure.retryable, (None,), unanswered)
        error.__cause__ = failure
    block.settle([None] * len(block.messages) if outcomes is None else outcomes, error)


def reason_of(failure: MetaqError) -> str:
    """Return the reason to give in a ``SendFailed`` caused by ``failure``."""
    return failure.reason if isinstance(failure, SendFailed) else str(failure)


def leading_block(messages: Sequence[Message]) -> int:
    """Return how many leading messages of one partition are sent as one block."""
    ends = accumulate(HEADER_BYTES + len(encode_body(one)[1]) for one in messages[:BLOCK_MESSAGES_MAX])
    return max(1, sum(1 for _ in takewhile(lambda end: end <= BLOCK_BYTES_MAX, ends)))


def partition_of(block: Block) -> Partition:
    """Return the partition of a block.

    Raises:
        TypeError: The queue is another tuple that compares equal to a partition.
    """
    Partition.require(block.queue)
    return cast("Partition", block.queue)
