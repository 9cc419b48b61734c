"""A consumer's partitions, shared by the reader, the fetchers and the coordinator. Does no I/O.

One lock guards everything. ``pause`` stops delivery while it is unknown whether the partitions still belong to this
consumer. A frozen process is not paused and does not notice that time has passed: so the clock is compared with
``until_s`` before each delivery. Changes of the assignment are queued for the reader, so that the program's callbacks
run in the reading thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nsmallest
from math import inf
from typing import Final, Generic, Literal

from metaq.client.groups.deliveries import D, HandedOut
from metaq.client.groups.in_hand import MessageBlock, Span
from metaq.client.groups.owned import POLL_STEPS, O, OffsetJump, Owned, Q
from metaq.client.groups.round_robin import RoundRobin
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import CorruptFrame, MetaqError, PartitionLost
from metaq.model import TopicPartition


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """Partitions that were gained, or are about to be released."""

    kind: Literal["assigned", "revoked"]
    partitions: tuple[TopicPartition, ...]


class ConsumerState(Generic[D, Q, O]):
    """The state of a consumer. ``changed`` is notified whenever something may have become possible."""

    def __init__(self, *, retry_max_s: float, max_attempts: int, dedupe: int) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.partitions: dict[TopicPartition, Owned[D, Q, O]] = {}
        self.generation = 0
        self.paused: str | None = "the consumer has not joined its group yet"
        """Why nothing is delivered; ``None`` while messages are delivered."""
        self.until_s: Callable[[TopicPartition], float] = lambda where: inf
        """Until when a partition is proven to belong to this consumer; later, none of its messages is delivered."""
        self.failure: BaseException | None = None
        """The error that ends the consumer; its reader raises it."""
        self.changes: deque[AssignmentChange] = deque()
        self.callbacks_running = 0
        self.closing = False
        self.version = 0
        """Counts notifications: a thread that wants to wait detects one that it has missed."""
        self.wakers: list[Callable[[], None]] = []
        """Called with the lock when ``changed`` is notified, for readers that do not wait for it."""
        self.on_brokers: Callable[[set[int | str]], None] = lambda brokers: None
        """Called with the lock when partitions of brokers were added, for the fetchers."""
        self.on_damage: Callable[[], None] | None = None
        """Called with the lock when a damaged message is met, which may be the middle of one of a partition that was
        made again; ``confirm`` must follow. ``None``: damage is an error at once.
        """
        self.max_attempts: Final = max_attempts
        self._retry_max_s = retry_max_s
        self._seen: OrderedDict[int | str, None] = OrderedDict()
        self._seen_max = dedupe
        self._seen_before = self._seen.__contains__ if dedupe else None
        self._order: RoundRobin[D] = RoundRobin()
        self._call = 0
        self._requests = 0

    def notify(self) -> None:
        """Wake the threads that wait for ``changed``. The caller has the lock."""
        self.version += 1
        self.changed.notify_all()
        for wake in self.wakers:
            wake()

    # the assignment

    def add(self, partitions: Collection[Owned[D, Q, O]]) -> None:
        with self.lock:
            for partition in partitions:
                self.partitions[partition.where] = partition
            self._divide_memory()
            self.changes.append(AssignmentChange("assigned", tuple(sorted(one.where for one in partitions))))
            self.on_brokers({one.where.partition.broker for one in partitions})
            self.notify()

    def keep(self, places: Collection[TopicPartition]) -> None:
        """Resume the partitions among ``places`` that were suspended or about to be released."""
        with self.lock:
            kept = [where for where in places if self.partitions[where].revoking]
            is_changed = bool(kept) or any(self.partitions[where].suspended for where in places)
            for where in places:
                self.partitions[where].revoking = self.partitions[where].suspended = False
                self._order.add(self.partitions[where])
            if kept:
                self.changes.append(AssignmentChange("assigned", tuple(sorted(kept))))
            if is_changed:
                self.notify()

    def suspend(self, places: Collection[TopicPartition]) -> None:
        """Stop reading ``places`` for now."""
        with self.lock:
            for where in places:
                self.partitions[where].suspended = True
            if places:
                self.notify()

    def confirm(self, places: Collection[TopicPartition]) -> None:
        """Note that ``places`` were not made again: their damaged messages are errors."""
        with self.lock:
            for partition in [self.partitions[where] for where in places if where in self.partitions]:
                partition.doubted, partition.confirmed = False, True
                self._order.add(partition)
            if places:
                self.notify()

    def revoke(self, places: Collection[TopicPartition]) -> None:
        """Stop delivery from ``places``; the reader is notified once."""
        with self.lock:
            new = sorted(where for where in places if not self.partitions[where].revoking)
            for where in new:
                self.partitions[where].revoking = True
            if new:
                self.changes.append(AssignmentChange("revoked", tuple(new)))
                self.notify()

    def remove(self, places: Collection[TopicPartition]) -> list[Owned[D, Q, O]]:
        """Disown partitions: late acknowledgements are refused. Return the partitions that were not lost before."""
        with self.lock:
            removed = [self.partitions.pop(where) for where in places]
            left = [partition for partition in removed if not partition.lost]
            for partition in removed:
                partition.lost = True
                self._order.discard(partition)
            self._divide_memory()
            self.notify()
        return left

    def _divide_memory(self) -> None:
        for partition in self.partitions.values():
            partition.beside = len(self.partitions)

    def drained(self, places: Collection[TopicPartition], *, callbacks: bool) -> bool:
        """Return whether no message of these is in hand and, with ``callbacks``, the reader has processed the
        changes.
        """
        if callbacks and (self.changes or self.callbacks_running):
            return False
        return not any(self.partitions[where].in_hand for where in places if where in self.partitions)

    def pause(self, why: str) -> None:
        """Stop delivery until ``resume``."""
        with self.lock:
            self.paused = why
            self.version += 1

    def explain(self, why: str) -> None:
        """Replace the reason why nothing is delivered, while that is so."""
        with self.lock:
            if self.paused is not None:
                self.paused = why

    def resume(self) -> None:
        with self.lock:
            if self.paused is not None:
                self.paused = None
                self.notify()

    def forked(self) -> None:
        """In a child process: no thread has the lock, and delivered messages cannot be settled."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.wakers.clear()
        for partition in self.partitions.values():
            partition.lost = True
        self.partitions.clear()
        self._order = RoundRobin()

    def close(self) -> None:
        """Stop delivery and fetching for good."""
        with self.lock:
            self.closing = True
            self.pause("the consumer is closed")

    def fail(self, error: BaseException) -> None:
        """End the consumer: its reader raises ``error``."""
        with self.lock:
            self.failure = self.failure or error
            self.notify()

    # fetching

    def requests(self, broker: int | str, now_s: float, limit: int) -> list[tuple[Owned[D, Q, O], Q]]:
        """Return the requests that are due at a broker, at most ``limit``, least recently requested partitions first;
        none while nothing is delivered. The caller has the lock.
        """
        if self.paused is not None:
            return []
        due = [one for one in self._of(broker) if (at := one.next_request_s()) is not None and at <= now_s]
        if len(due) > limit:
            due = nsmallest(limit, due, key=lambda one: one.asked)
        self._requests += 1
        found: list[tuple[Owned[D, Q, O], Q]] = []
        for partition in due:
            partition.asked = self._requests
            if (request := partition.request(now_s)) is not None:
                found.append((partition, request))
        return found

    def next_request_s(self, broker: int | str) -> float | None:
        """Return when the next request to a broker is due; ``None``: not without a change. The caller has the lock."""
        if self.paused is not None:
            return None
        times = [at for partition in self._of(broker) if (at := partition.next_request_s()) is not None]
        return min(times, default=None)

    def fetched(
        self, asked: Sequence[tuple[Owned[D, Q, O], Q]], outcomes: Sequence[O | None], now_s: float
    ) -> list[OffsetJump]:
        """Process the outcomes of requests; return the offsets that the broker does not store any more."""
        with self.lock:
            jumps = [
                partition.fetched(request, outcome, now_s)
                for (partition, request), outcome in zip(asked, outcomes, strict=True)
            ]
            for partition, _ in asked:
                if not partition.lost:
                    self._order.add(partition)
            self.notify()
        return [jump for jump in jumps if jump is not None]

    def _of(self, broker: int | str) -> Iterator[Owned[D, Q, O]]:
        return (one for where, one in self.partitions.items() if where.partition.broker == broker)

    # delivery and settlement

    def may_hand_out(self, where: TopicPartition, now_s: float) -> bool:
        """Whether a partition is proven to belong to this consumer now. The caller has the lock."""
        return self.paused is None and now_s < self.until_s(where)

    def begin_call(self) -> None:
        """The reader begins a call; see ``take_back``."""
        self._call += 1

    def take(self, now_s: float, *, free_only: bool = False) -> D | None:
        """Deliver a message of the partition that is next. The caller has the lock.

        ``free_only``: reserve the partition for the caller until ``handled`` is called.

        Raises:
            CorruptFrame, CorruptRecord: As ``Owned.take``.
        """
        if self.paused is not None:
            return None
        order = self._order
        for _ in range(len(order)):
            partition = order.front
            assert partition is not None
            may_be = not partition.busy and now_s < self.until_s(partition.where)
            delivery = self._take(partition, now_s) if may_be else None
            if delivery is None:
                order.go_on(stays=not may_be or partition.retry_s is not None)
                continue
            if free_only:
                partition.busy = True
                order.go_on(stays=True)
            else:
                order.handed(1)
            return delivery
        return None

    def handled(self, delivery: D) -> None:
        """End the reservation of a message's partition, unless it was assigned again meanwhile."""
        with self.lock:
            partition = self.partitions.get(delivery.where)
            if partition is not None and partition.generation == delivery.generation:
                partition.busy = False
                self.notify()

    def take_more(self, behind: D, now_s: float) -> D | None:
        """Deliver the next message of the partition that the caller has reserved with ``behind``, unless it was
        assigned again meanwhile. The caller has the lock.

        Raises:
            CorruptFrame, CorruptRecord: As ``Owned.take``.
        """
        partition = self.partitions.get(behind.where)
        if partition is None or partition.generation != behind.generation:
            return None
        return self._take(partition, now_s) if self.may_hand_out(behind.where, now_s) else None

    def take_many(self, count_max: int, now_s: float) -> list[D]:
        """Deliver up to ``count_max`` buffered messages of one partition.

        Never raises: ``take`` finds damaged and refused messages again.
        """
        with self.lock:
            if self.paused is not None or self.failure is not None:
                return []
            order = self._order
            for _ in range(len(order)):
                partition = order.front
                assert partition is not None
                waits = partition.next_request_s() is None
                found: list[D] = []
                if not partition.busy and now_s < self.until_s(partition.where):
                    with suppress(MetaqError):
                        found = partition.take_many(min(count_max, order.left), self._seen_before, self._call)
                if waits and partition.next_request_s() is not None:
                    self.notify()  # the buffer is nearly empty
                if found:
                    order.handed(len(found))
                    return found
                order.go_on(stays=True)  # ``take`` may find a message
        return []

    def stream(self, behind: HandedOut) -> MessageBlock[D] | None:
        """Return messages that an iteration may take itself; see ``Owned.stream``. The caller has the lock."""
        partition = self._order.front
        if partition is None or partition.where != behind.where or self.paused is not None or self._seen_max:
            return None  # its share may be used up
        block = partition.stream(behind)
        if block is not None:
            block.stream_end = min(len(block.messages), block.taken + self._order.left)
            self._order.handed(block.stream_end - block.taken)
        return block

    def end_stream(self, where: TopicPartition) -> None:
        """Return to delivery by ``take``."""
        with self.lock:
            if where in self.partitions:
                self.partitions[where].end_stream()
            self.version += 1

    def _take(self, partition: Owned[D, Q, O], now_s: float) -> D | None:
        waits = partition.next_request_s() is None
        try:
            delivery = partition.take(now_s, self._seen_before, self._call)
        except CorruptFrame:
            if self.on_damage is None or partition.confirmed:
                raise
            partition.doubted = True
            self.on_damage()
            return None
        if waits and partition.next_request_s() is not None:
            self.notify()  # the buffer is nearly empty
        return delivery

    def within(self, span: Span) -> list[D]:
        """Return the messages of a span that can still be settled."""
        with self.lock:
            partition = self.partitions.get(span.first.where)
            return [] if partition is None else partition.within(span)

    def wait_s(self, longest_s: float, now_s: float) -> float:
        """Return how long to wait for a change: less than ``longest_s`` if a refused message is due before. The caller
        has the lock.
        """
        may_be = (one for one in self.partitions.values() if not (one.rests or one.busy))
        times = (at for one in may_be if (at := one.retry_s) is not None and self.may_hand_out(one.where, now_s))
        due_s = min(times, default=None)
        return longest_s if due_s is None else min(longest_s, max(0.0, due_s - now_s) + 0.001)

    def acknowledge(self, delivery: HandedOut) -> None:
        """Settle a message.

        Raises:
            PartitionLost: The partition was lost, or the message rolled back.
        """
        with self.lock:
            partition = self.partitions.get(delivery.where)
            if partition is None or not partition.settle(delivery):
                raise PartitionLost(str(delivery.where), delivery.offset, delivery.generation)
            if self._seen_max:
                self._note_seen(delivery.message_id)
            if partition.revoking:
                self.notify()

    def acknowledge_spans(self, spans: Sequence[Span]) -> None:
        """Settle messages; messages of lost partitions are ignored: they are delivered again, here or elsewhere."""
        with self.lock:
            for span in spans:
                partition = self.partitions.get(span.first.where)
                if partition is None:
                    continue
                if self._seen_max:
                    for one in partition.within(span):
                        self._note_seen(one.message_id)
                partition.settle_span(span)
                if partition.revoking:
                    self.notify()

    def schedule_retry(self, delivery: D, now_s: float) -> bool:
        """Deliver a message again after a pause that grows with its attempts; return whether its partition is still
        owned.
        """
        with self.lock:
            partition = self.partitions.get(delivery.where)
            if partition is None or partition.generation != delivery.generation:
                return False
            due_s = now_s + self.pause_s(delivery.attempt)
            self._order.add(partition)
            return partition.retry(delivery, delivery.again(), due_s)

    def give_back(self, delivery: HandedOut) -> None:
        """Deliver a message again, before others of its partition: its handler was interrupted."""
        with self.lock:
            partition = self.partitions.get(delivery.where)
            if partition is not None:
                partition.give_back(delivery)
                self._order.add(partition)
                self.notify()

    def take_back(self) -> None:
        """Deliver the unsettled messages of the last call again: the call was interrupted."""
        with self.lock:
            for partition in self.partitions.values():
                if partition.take_back(self._call):
                    self._order.add(partition)
            self.notify()

    def pause_s(self, failures: int) -> float:
        """Return the pause after a message was refused ``failures`` times."""
        return min(self._retry_max_s, self._retry_max_s / POLL_STEPS * failures)

    def roll_back(self, places: Collection[TopicPartition], now_s: float) -> int:
        """Have the unsettled messages of these partitions delivered again; return their number."""
        with self.lock:
            mine = [self.partitions[where] for where in places if where in self.partitions]
            count = sum(partition.roll_back(now_s, self.pause_s) for partition in mine)
            self.notify()
        return count

    def positions(self) -> dict[TopicPartition, GroupOffset]:
        with self.lock:
            return {where: partition.position for where, partition in self.partitions.items()}

    def unsaved(self, places: Collection[TopicPartition] | None = None) -> Mapping[TopicPartition, GroupOffset]:
        """Return the positions that are not in the offset storage, of ``places`` if given, else of all read
        partitions.
        """
        with self.lock:
            return {
                where: partition.position
                for where, partition in self.partitions.items()
                if (not partition.suspended if places is None else where in places)
                and not partition.lost
                and partition.position != partition.saved
            }

    def note_saved(self, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """Record offsets that the storage has."""
        with self.lock:
            for where, offset in offsets.items():
                if where in self.partitions:
                    self.partitions[where].saved = offset

    def note_loaded(self, stored: Mapping[TopicPartition, GroupOffset], asked: Collection[TopicPartition]) -> None:
        """Record what the storage returned for ``asked``: offsets that it has lost must be saved again."""
        with self.lock:
            for where, partition in self.partitions.items():
                if where in asked:
                    partition.saved = stored.get(where)

    def note_missing(self, places: Collection[TopicPartition]) -> None:
        """Record that the storage has no offsets of these, whatever it had before."""
        with self.lock:
            for where in places:
                if where in self.partitions:
                    self.partitions[where].saved = None

    def _note_seen(self, message_id: int | str) -> None:
        self._seen[message_id] = None
        if len(self._seen) > self._seen_max:
            self._seen.popitem(last=False)
