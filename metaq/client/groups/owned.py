"""One partition that a consumer owns: what of it is in hand, what is to be repeated, how far it is settled. Pure.

::

    offset     position          frontier
    settled ──────┤                 │
    in hand       ├─────────────────┤

``position`` is what is saved: every message before it is settled. How a partition is fetched and decoded is up to its
subclass, one for each system. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from metaq.client.groups.deliveries import D, InHand, Settler
from metaq.discovery.zk_layout import GroupOffset
from metaq.model import TopicPartition

POLL_STEPS: Final = 10
"""Pauses grow by tenths of the longest one, between requests and between attempts. Source: MetaQ's Java client."""

Q = TypeVar("Q")
"""What a partition asks its broker for."""
O = TypeVar("O")  # noqa: E741 - the letter of "outcome"
"""What comes of that."""


@dataclass(frozen=True, slots=True)
class Jump:
    """The broker had nothing at ``asked`` any more and said to go on at ``to``."""

    where: TopicPartition
    asked: int
    to: int


class Owned(ABC, Generic[D, Q, O]):
    """See the module. ``saved`` is what the offset storage has, ``None`` if it has nothing. Not thread-safe."""

    def __init__(self, where: TopicPartition, start: GroupOffset, generation: int, saved: GroupOffset | None) -> None:
        self.where, self.generation, self.saved = where, generation, saved
        self.revoking = False
        """No more messages are handed out, those in hand may still be settled."""
        self.lost = False
        """Nothing is settled or saved any more."""
        self.busy = False
        """A worker has it; another one leaves it alone."""
        self._frontier = start.offset
        self._last_id = start.message_id
        self._failed: tuple[int, int] = (-1, 0)  # offset of a message that was refused, and how often
        self._again: tuple[D, float] | None = None
        self._in_hand: deque[InHand] = deque()
        self._not_before = 0.0

    # what is fetched

    @abstractmethod
    def request(self, now_s: float) -> Q | None:
        """Return the next request, ``None`` if there is none now: one is under way, or enough is buffered."""

    @abstractmethod
    def next_request_s(self) -> float | None:
        """Return when ``request`` is worth asking, ``None`` if something else has to happen first."""

    @abstractmethod
    def fetched(self, request: Q, outcome: O | None, now_s: float) -> Jump | None:
        """Take what came of ``request``; ``None`` if its broker could not be asked."""

    @abstractmethod
    def _restart(self, offset: int) -> None:
        """Forget what is buffered and asked for, and go on at ``offset``."""

    @abstractmethod
    def _take_next(self, seen: Callable[[int | str], bool], settler: Settler[D]) -> D | None:
        """Hand out the next message of what is buffered. Raises as ``take``."""

    # what is handed out

    def take(self, now_s: float, seen: Callable[[int | str], bool], settler: Settler[D]) -> D | None:
        """Hand out the next message; ``None`` if there is none now. ``seen``: leave out a message with this id.

        Raises:
            CorruptFrame, CorruptRecord: The next message is damaged, and damaged ones are not to be skipped.
        """
        if self.lost or self.revoking:
            return None
        if self._again is None:
            return self._take_next(seen, settler)
        delivery, due_s = self._again
        if now_s < due_s:
            return None
        self._again = None
        return delivery

    def _enter(self, entry: InHand) -> int:
        """Note that a message is handed out; return which attempt that is."""
        self._in_hand.append(entry)
        self._frontier = entry.end
        failed_at, failures = self._failed
        return failures + 1 if failed_at == entry.offset else 1

    # how far it is settled

    @property
    def position(self) -> GroupOffset:
        """Every message before this offset is settled; the id is that of the last one."""
        return GroupOffset(self._in_hand[0].offset if self._in_hand else self._frontier, self._last_id)

    @property
    def in_hand(self) -> int:
        """Messages that were handed out and are not settled."""
        return len(self._in_hand)

    def settle(self, entry: InHand) -> bool:
        """Settle a message; return whether that counts: not after its partition was lost or it was rolled back."""
        if self.lost or entry.dropped:
            return False
        entry.settled = True
        in_hand = self._in_hand
        while in_hand and in_hand[0].settled:
            self._last_id = in_hand.popleft().message_id
        return True

    @property
    def retry_s(self) -> float | None:
        """When a refused message is handed out again; ``None`` if there is none."""
        return None if self._again is None else self._again[1]

    def retry(self, delivery: D, again: D, due_s: float) -> bool:
        """Hand ``again`` out from ``due_s`` on, before anything else of the partition; return as ``settle``."""
        if self.lost or delivery.entry.dropped:
            return False
        self._again = again, due_s
        return True

    def roll_back(self, now_s: float, pause_s: Callable[[int], float]) -> int:
        """Drop what is in hand; it is fetched and handed out again. Return how many messages that are.

        Only the first of them counts as refused: nobody can say which one was meant. ``pause_s``: how long to wait
        after so many refusals.
        """
        if not self._in_hand:
            return 0
        count, first = len(self._in_hand), self._in_hand[0].offset
        failures = 1 + (self._failed[1] if self._failed[0] == first else 0)
        self._failed = first, failures
        self.seek(first)
        self._not_before = now_s + pause_s(failures)
        return count

    def seek(self, offset: int) -> None:
        """Go on at ``offset``; what is in hand will not be settled any more."""
        for entry in self._in_hand:
            entry.dropped = True
        self._in_hand.clear()
        self._again = None
        self._frontier = offset
        self._restart(offset)
        self._not_before = 0.0
