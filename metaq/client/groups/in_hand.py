"""The messages of one partition that a consumer has taken and not settled yet. Pure.

Messages are added in blocks that were decoded together. A block counts how many of its messages were taken and how many
of these are settled, so that many messages are delivered and settled in one step::

    messages   0 ─────────────┬──────────────┬───────────── len
                    settled   │   in hand    │   not taken

Only messages that are settled before an earlier one are stored one by one. Settled blocks are dropped.

A *streamed* block belongs to one iteration, which takes its messages without a lock: taking a message settles the one
before. That is safe because only the iteration takes messages and the count only grows: a concurrent reader may count
one more message as in hand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic

from metaq.client.groups.deliveries import D, HandedOut
from metaq.discovery.zk_layout import NO_MESSAGE, GroupOffset


class MessageBlock(Generic[D]):
    """Messages in order; a reader continues at the offset ``end`` after them."""

    __slots__ = ("end", "is_streamed", "messages", "settled", "stream_end", "taken")

    def __init__(self, messages: list[D], end: int) -> None:
        self.messages, self.end = messages, end
        self.taken = self.settled = 0
        self.is_streamed = False
        self.stream_end = 0
        """Index after the last message that the iteration may take."""


@dataclass(frozen=True, slots=True)
class Span:
    """``count`` consecutive messages of one partition that were delivered."""

    first: HandedOut
    last: HandedOut
    count: int


class InHand(Generic[D]):
    """The unsettled messages of one partition. Not thread-safe, except for the streamed count."""

    def __init__(self, start: GroupOffset) -> None:
        self._blocks: deque[MessageBlock[D]] = deque()
        self._early: set[int] = set()
        """Offsets of messages that were settled before an earlier one."""
        self._end, self._last_id = start.offset, start.message_id

    # delivery

    def add(self, messages: list[D], end: int) -> None:
        """Append ``messages``, when all earlier ones were taken; the next block begins at ``end``."""
        if messages:
            self._blocks.append(MessageBlock(messages, end))
        elif self._blocks:
            self._blocks[-1].end = end
        else:
            self._end = end

    @property
    def has_more(self) -> bool:
        blocks = self._blocks
        return bool(blocks) and blocks[-1].taken < len(blocks[-1].messages)

    @property
    def next(self) -> D:
        """The next message to take; there must be one."""
        block = self._blocks[-1]
        return block.messages[block.taken]

    @property
    def next_offset(self) -> int:
        """The offset after all messages that were taken."""
        if not self._blocks:
            return self._end
        return self.next.offset if self.has_more else self._blocks[-1].end

    def take(self, count_max: int) -> list[D]:
        """Take up to ``count_max`` messages of one block; there must be at least one."""
        block = self._blocks[-1]
        if block.is_streamed:
            self.end_stream()
        start = block.taken
        block.taken = min(start + count_max, len(block.messages))
        return block.messages[start : block.taken]

    def leave_out(self, is_left_out: Callable[[int | str], bool]) -> None:
        """Skip the next messages while ``is_left_out`` is true of their ids."""
        block = self._blocks[-1]
        while block.taken < len(block.messages) and is_left_out(block.messages[block.taken].message_id):
            del block.messages[block.taken]
        self._drop_settled()

    def stream(self, behind: HandedOut) -> MessageBlock[D] | None:
        """Return the block of ``behind`` for an iteration that continues there. Returns ``None`` unless ``behind`` was
        taken last and nothing else is in hand.
        """
        block = self._blocks[-1] if len(self._blocks) == 1 and not self._early else None
        if block is None or block.taken - block.settled > 1 or block.taken == len(block.messages):
            return None
        if not block.taken or block.messages[block.taken - 1] is not behind:
            return None
        block.is_streamed = True
        return block

    def end_stream(self) -> None:
        """End the iteration: the last message taken is in hand, later ones can be taken."""
        self._count_streamed()
        for block in self._blocks:
            block.is_streamed = False

    # settlement

    @property
    def position(self) -> GroupOffset:
        """Everything before this offset is settled; the id belongs to the last settled message."""
        self._count_streamed()
        if not self._blocks:
            return GroupOffset(self._end, self._last_id)
        block = self._blocks[0]
        if block.settled < block.taken:
            return GroupOffset(block.messages[block.settled].offset, self._last_id)
        return GroupOffset(block.messages[block.settled - 1].end if block.settled else self._end, self._last_id)

    @property
    def count(self) -> int:
        """Number of messages from the first unsettled one to the last taken one."""
        self._count_streamed()
        return sum(block.taken - block.settled for block in self._blocks)

    @property
    def unsettled(self) -> int:
        """Number of messages that were taken and are not settled."""
        return self.count - len(self._early)

    def holds(self, offset: int) -> bool:
        """Whether the message at ``offset`` was taken and is not settled."""
        return offset not in self._early and any(_holds(block, offset) for block in self._blocks)

    def since(self, offset: int) -> list[D]:
        """Return the unsettled messages from ``offset`` on that were taken."""
        self._count_streamed()
        hand = (one for block in self._blocks for one in block.messages[block.settled : block.taken])
        return [one for one in hand if one.offset >= offset and one.offset not in self._early]

    def replace(self, message: D) -> bool:
        """Replace the message at the same offset by ``message``; return whether that one was in hand."""
        self._count_streamed()
        if not self.holds(message.offset):
            return False
        for block in self._blocks:
            if _holds(block, message.offset):
                at = bisect_left(block.messages, message.offset, key=lambda one: one.offset)
                block.messages[at] = message
        return True

    def settle(self, offset: int) -> None:
        """Settle the message at ``offset``, which was taken."""
        self._count_streamed()
        if not any(_holds(block, offset) for block in self._blocks):
            return  # settled already
        self._early.add(offset)
        for message in self._unsettled():
            if message.offset not in self._early:
                break
            self._early.remove(message.offset)
            self._blocks[0].settled += 1
            self._last_id = _number(message)
            self._drop_settled()

    def settle_span(self, span: Span) -> None:
        self._count_streamed()
        if not self._blocks:
            return
        block = self._blocks[0]
        start, end = block.settled, block.settled + span.count
        plain = not self._early and end <= block.taken
        if plain and block.messages[start] is span.first and block.messages[end - 1] is span.last:
            block.settled, self._last_id = end, _number(span.last)
            self._drop_settled()
            return
        for message in self.within(span):
            self.settle(message.offset)

    def within(self, span: Span) -> list[D]:
        """Return the messages of a span, except those in blocks that are settled."""
        first, last = span.first.offset, span.last.offset
        return [one for block in self._blocks for one in block.messages[: block.taken] if first <= one.offset <= last]

    def _unsettled(self) -> Iterator[D]:
        """Yield the first message in hand and, each time that it is settled, the next one."""
        while self._blocks and (block := self._blocks[0]).settled < block.taken:
            yield block.messages[block.settled]

    def _count_streamed(self) -> None:
        """Count the messages that an iteration has passed as settled."""
        if not self._blocks or not (block := self._blocks[-1]).is_streamed:
            return
        settled = block.taken - 1
        if settled > block.settled:
            block.settled, self._last_id = settled, _number(block.messages[settled - 1])

    def _drop_settled(self) -> None:
        while self._blocks and (block := self._blocks[0]).settled == len(block.messages):
            self._end = block.end
            self._blocks.popleft()


def _holds(block: MessageBlock[D], offset: int) -> bool:
    messages, settled, taken = block.messages, block.settled, block.taken
    return settled < taken and messages[settled].offset <= offset <= messages[taken - 1].offset


def _number(message: HandedOut) -> int:
    """Return the id to store with an offset. RocketMQ's ids are not numbers."""
    return message.message_id if isinstance(message.message_id, int) else NO_MESSAGE
