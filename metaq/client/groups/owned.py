"""A partition that a consumer owns: delivered messages, repetitions, and the position. Pure.

::

    offset     position
    settled ──────┤
    in hand       ├─────────────────┤

``position`` is what is saved: every message before it is settled. Unsettled messages are counted by ranges
(``in_hand``). A subclass for each system fetches and decodes. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from metaq.client.groups.deliveries import D, HandedOut, ReadEpoch, Settler
from metaq.client.groups.in_hand import InHand, MessageBlock, Span
from metaq.discovery.zk_layout import GroupOffset
from metaq.model import TopicPartition

POLL_STEPS: Final = 10
"""Pauses between requests and between attempts grow by tenths of the longest one. Source: MetaQ's Java client."""

FULL_PARTITIONS_MAX: Final = 32
"""How many partitions may buffer ``fetch_bytes``. With more partitions, each gets an equal part of the total."""

Q = TypeVar("Q")
"""A partition's request to its broker."""
O = TypeVar("O")  # noqa: E741 - the letter of "outcome"
"""The outcome of a request."""


@dataclass(frozen=True, slots=True)
class OffsetJump:
    """The broker does not store offset ``asked`` any more; its data continues at ``to``."""

    where: TopicPartition
    asked: int
    to: int


Seen = Callable[[int | str], bool]
"""Whether a message with this id was delivered before and should be skipped."""


class Chunk(NamedTuple, Generic[D]):
    """Decoded messages, possibly none; a reader continues at the offset ``end`` after them."""

    messages: list[D]
    end: int


class Owned(ABC, Generic[D, Q, O]):
    """A partition that this consumer owns. ``saved`` is its stored offset, if any. Not thread-safe."""

    def __init__(
        self, where: TopicPartition, start: GroupOffset, generation: int, settler: Settler, saved: GroupOffset | None
    ) -> None:
        self.where, self.generation, self.saved = where, generation, saved
        self.revoking = False
        """No more messages are delivered; delivered ones may still be settled."""
        self.suspended = False
        """The partition may belong to another consumer now: nothing is delivered until that is known."""
        self.lost = False
        """Nothing is settled or saved any more."""
        self.doubted = False
        """A damaged message was met: nothing is delivered until it is known whether the partition was made again."""
        self.confirmed = False
        """It was not: damage is an error."""
        self.busy = False
        """A worker handles it; other workers skip it."""
        self.asked = 0
        """Number of the last request to its broker."""
        self.beside = 1
        """How many partitions the consumer owns, including this one."""
        self._epoch = ReadEpoch(where, generation, settler)
        self._hand: InHand[D] = InHand(start)
        self._failed: tuple[int, int] = (-1, 0)  # offset of a refused message, and the number of refusals
        self._again: deque[D] = deque()  # in hand; to be delivered again before anything else
        self._again_s = 0.0  # earliest time of that
        self._cut: Chunk[D] | None = None  # decoded, not in hand yet
        self._is_decoding = False
        self._call, self._call_first = 0, 0  # a call of the reader, and the offset of its first message
        self._not_before = 0.0

    @property
    def rests(self) -> bool:
        """Whether fetching and delivery are stopped."""
        return self.lost or self.revoking or self.suspended or self.doubted

    # fetching

    @abstractmethod
    def request(self, now_s: float) -> Q | None:
        """Return the next request; ``None`` if one is in flight or enough is buffered."""

    @abstractmethod
    def next_request_s(self) -> float | None:
        """Return when to call ``request`` again; ``None`` if another event must happen first."""

    @abstractmethod
    def fetched(self, request: Q, outcome: O | None, now_s: float) -> OffsetJump | None:
        """Process the outcome of ``request``; ``None`` if its broker could not be asked."""

    def _share_of(self, fetch_bytes: int) -> int:
        """Return how many bytes of this partition to request and buffer at a time."""
        return max(1, min(fetch_bytes, fetch_bytes * FULL_PARTITIONS_MAX // self.beside))

    @abstractmethod
    def _restart(self, offset: int) -> None:
        """Drop buffered data and requests, and continue at ``offset``."""

    @abstractmethod
    def _decode(self) -> Chunk[D] | None:
        """Decode some of the buffered data; ``None`` if it has no whole message. Raises as ``take``."""

    # delivery

    def take(self, now_s: float, seen: Seen | None = None, call: int = 0) -> D | None:
        """Deliver the next message; ``None`` if there is none now. Messages that are ``seen`` are skipped.

        ``call`` is the number of the reader's call; see ``take_back``.

        Raises:
            CorruptFrame, CorruptRecord: The next message is damaged, and damaged messages are not skipped.
        """
        if self.rests:
            return None
        if self._again:
            if now_s < self._again_s:
                return None
            self._note_call(call, self._again[0].offset)
            return self._again.popleft()
        self._note_call(call, self._hand.next_offset)
        return self._hand.take(1)[0] if self._find_next(seen) else None

    def take_many(self, count_max: int, seen: Seen | None = None, call: int = 0) -> list[D]:
        """Deliver messages as ``take`` does, up to one that was refused before, which only ``take`` delivers."""
        if self.rests or self._again:
            return []
        hand = self._hand
        self._note_call(call, hand.next_offset)
        if not self._find_next(seen) or hand.next.attempt > 1:
            return []
        return hand.take(1 if seen is not None else count_max)

    def _note_call(self, call: int, offset: int) -> None:
        """Note that a call takes messages from ``offset`` on, before it does: it may be interrupted at any point."""
        if call != self._call:
            self._call_first = offset
            self._call = call

    def stream(self, behind: HandedOut) -> MessageBlock[D] | None:
        """Return messages that an iteration may take itself, after the only one in hand; see ``in_hand``."""
        if self.rests or self._again:
            return None
        return self._hand.stream(behind)

    def end_stream(self) -> None:
        """Return to delivery by ``take``."""
        self._hand.end_stream()

    def _find_next(self, seen: Seen | None) -> bool:
        """Make a message available; return whether there is one."""
        hand = self._hand
        while True:
            if hand.has_more and seen is not None:
                hand.leave_out(seen)
            if hand.has_more:
                return True
            self._is_decoding = True
            try:
                chunk = self._next_chunk()
                if chunk is not None:
                    hand.add(*chunk)
            except Exception:
                self._is_decoding = False  # a failure is found again
                raise
            self._is_decoding = False
            if chunk is None:
                return False

    def _next_chunk(self) -> Chunk[D] | None:
        """Return the next chunk to deliver. A message that was refused before begins a chunk."""
        chunk, self._cut = self._cut or self._decode(), None
        failed_at, failures = self._failed
        if chunk is None or not chunk.messages or not chunk.messages[0].offset <= failed_at < chunk.end:
            return chunk
        messages = chunk.messages
        index = sum(one.offset < failed_at for one in messages)
        if index < len(messages) and messages[index].offset == failed_at:
            if index:
                self._cut = Chunk(messages[index:], chunk.end)
                return Chunk(messages[:index], failed_at)
            messages[0] = messages[0].again(failures)
        return chunk

    # settlement

    @property
    def position(self) -> GroupOffset:
        """Every message before this offset is settled; the id belongs to the last one."""
        return self._hand.position

    @property
    def in_hand(self) -> int:
        """Number of delivered, unsettled messages that do not wait for redelivery."""
        return self._hand.unsettled - len(self._again)

    def settle(self, delivery: HandedOut) -> bool:
        """Settle a message; return ``False`` if its partition was lost or it was rolled back."""
        if self.lost or delivery.epoch is not self._epoch:
            return False
        self._hand.settle(delivery.offset)
        self._forget_settled()
        return True

    def settle_span(self, span: Span) -> None:
        """Settle the messages of a span that can still be settled."""
        if not self.lost and span.first.epoch is self._epoch:
            self._hand.settle_span(span)
            self._forget_settled()

    def _forget_settled(self) -> None:
        """Drop redeliveries of messages that were settled meanwhile."""
        if self._again:
            self._again = deque(one for one in self._again if self._hand.holds(one.offset))

    def within(self, span: Span) -> list[D]:
        """Return the messages of a span that can still be settled."""
        return [] if self.lost or span.first.epoch is not self._epoch else self._hand.within(span)

    @property
    def retry_s(self) -> float | None:
        """When a refused message is delivered again; ``None`` if there is none."""
        return self._again_s if self._again else None

    def retry(self, delivery: D, again: D, due_s: float) -> bool:
        """Deliver ``again`` from ``due_s`` on, before anything else of the partition; return as ``settle``.

        Has no effect if the message is settled.
        """
        if self.lost or delivery.epoch is not self._epoch:
            return False
        if self._hand.replace(again):
            self._again, self._again_s = deque([again, *self._others_again(again.offset)]), due_s
        return True

    def give_back(self, delivery: HandedOut) -> None:
        """Deliver a message again, at once and as the same attempt: its handler was interrupted."""
        self._give_back(self.within(Span(delivery, delivery, 1)))

    def take_back(self, call: int) -> bool:
        """Deliver the unsettled messages of the interrupted call ``call`` again; return whether it took any of this
        partition.
        """
        if call != self._call or self.lost:
            return False
        self.busy = False
        self._hand.end_stream()
        if self._is_decoding:  # the chunk being decoded is lost; fetch it again
            self._is_decoding, self._cut = False, None
            self._restart(self._hand.next_offset)
        self._give_back(self._hand.since(self._call_first))
        return True

    def _give_back(self, messages: Sequence[D]) -> None:
        waiting = {one.offset: one for one in self._again}
        waiting |= {one.offset: one for one in messages if self._hand.holds(one.offset)}
        if not self._again:
            self._again_s = 0.0
        self._again = deque(waiting[offset] for offset in sorted(waiting))

    def _others_again(self, offset: int) -> list[D]:
        return [one for one in self._again if one.offset != offset]

    def roll_back(self, now_s: float, pause_s: Callable[[int], float]) -> int:
        """Drop the unsettled messages, to be fetched and delivered again. Return their number.

        Only the first counts as refused, because it is unknown which one was meant. ``pause_s``: pause after that
        number of refusals.
        """
        count, first = self._hand.count, self._hand.position.offset
        if not count:
            return 0
        failures = 1 + (self._failed[1] if self._failed[0] == first else 0)
        self._failed = first, failures
        self.seek(first)
        self._not_before = now_s + pause_s(failures)
        return count

    def seek(self, offset: int) -> None:
        """Continue at ``offset``; messages delivered before cannot be settled any more."""
        self._epoch = self._epoch.again()
        self._hand = InHand(GroupOffset(offset, self._hand.position.message_id))
        self._again.clear()
        self._cut, self._is_decoding, self._call = None, False, 0
        self._restart(offset)
        self._not_before = 0.0
