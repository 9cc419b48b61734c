"""A queue that a consumer owns: what is pulled of it, and the messages in that. Pure.

Answers are kept as they came and decoded when a message is handed out. A broker compares hashes of tags, and sends
inner batches as one record, so tags and offsets are looked at here before a message is handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from metaq.backends.rocketmq.pulls import ALL, Found, Moved, NotYet, Subscription
from metaq.backends.rocketmq.waiting_pulls import Outcome
from metaq.client.groups.deliveries import InHand, Settler
from metaq.client.groups.owned import POLL_STEPS, Jump, Owned
from metaq.client.rocketmq.groups.deliveries import RocketDelivery, original_topic
from metaq.client.rocketmq.records import received_fields
from metaq.discovery.zk_layout import NO_MESSAGE, GroupOffset
from metaq.errors import CorruptRecord
from metaq.formats.rocketmq.properties import TAGS
from metaq.formats.rocketmq.records import Record, read_record, unwrapped
from metaq.formats.rocketmq.sys_flags import INNER_BATCH
from metaq.model import TopicPartition

WAITED_S: Final = 0.5
"""A broker that answers "nothing new" sooner did not wait for messages; it is not asked again at once."""


class QueueAnswer(NamedTuple):
    """What a broker answered to a pull, and whether the queue's master did: only that knows where the queue ends."""

    outcome: Outcome
    from_master: bool


@dataclass(frozen=True, eq=False)
class Pull:
    """A pull of ``where`` at ``offset``, to be sent to the broker with this id; sent at ``asked_s``."""

    where: TopicPartition
    offset: int
    broker_id: int
    asked_s: float


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How queues are read. ``buffer_bytes``: what of a queue is pulled ahead; ``poll_max_s``: longest pause after one
    answer too many."""

    subscription: Subscription = ALL
    namespace: str | None = None
    buffer_bytes: int = 1 << 20
    poll_max_s: float = 1.0
    skip_corrupt: bool = False


class OwnedQueue(Owned[RocketDelivery, Pull, QueueAnswer]):
    """See the module and ``Owned``. Not thread-safe."""

    def __init__(
        self,
        where: TopicPartition,
        start: GroupOffset,
        generation: int,
        settings: QueueSettings,
        saved: GroupOffset | None = None,
    ) -> None:
        super().__init__(where, start, generation, saved)
        self._settings = settings
        self._broker_id = 0
        self._pause_s = 0.0
        self._restart(start.offset)

    def _restart(self, offset: int) -> None:
        self._fetched = offset
        self._answers: deque[Found | Moved] = deque()
        self._buffered = 0
        self._found: Found | None = None
        self._at = 0  # of the next record of that
        self._batch: Iterator[Record] = iter(())  # what is left of a record with several messages
        self._current: Record | None = None  # the message to look at next
        self._asked: Pull | None = None

    # what is fetched

    def request(self, now_s: float) -> Pull | None:
        """See ``Owned``."""
        if self._waits() or now_s < self._not_before:
            return None
        self._asked = Pull(self.where, self._fetched, self._broker_id, now_s)
        return self._asked

    def next_request_s(self) -> float | None:
        """See ``Owned``."""
        return None if self._waits() else self._not_before

    def _waits(self) -> bool:
        full = self._buffered >= self._settings.buffer_bytes
        return self.lost or self.revoking or self._asked is not None or full

    def fetched(self, request: Pull, outcome: QueueAnswer | None, now_s: float) -> Jump | None:
        """See ``Owned``."""
        if request is not self._asked:
            return None  # rolled back since
        self._asked = None
        if outcome is None:
            self._broker_id = 0
            self._pause(now_s)
            return None
        match outcome.outcome:
            case Found() as found:
                self._answers.append(found)
                self._buffered += len(found.data)
                self._fetched, self._broker_id = found.next_offset, found.broker_id
                self._pause_s = 0.0
            case NotYet() as not_yet:
                self._broker_id = not_yet.broker_id
                if now_s - request.asked_s < WAITED_S:
                    self._pause(now_s)
                else:
                    self._pause_s = 0.0
            case Moved() as moved:
                return self._move(request.offset, moved, outcome.from_master, now_s)
        return None

    def _move(self, asked: int, moved: Moved, from_master: bool, now_s: float) -> Jump | None:
        to = moved.first if asked < moved.first else moved.end
        if to == asked or not (from_master or to > asked):  # a slave may be behind
            self._broker_id = 0
            self._pause(now_s)
            return None
        self._answers.append(Moved(to, to))  # what was pulled before comes first
        self._fetched = to
        return Jump(self.where, asked, to)

    def _pause(self, now_s: float) -> None:
        self._pause_s = min(self._settings.poll_max_s, self._pause_s + self._settings.poll_max_s / POLL_STEPS)
        self._not_before = now_s + self._pause_s

    # what is handed out

    def _take_next(self, seen: Callable[[int | str], bool], settler: Settler[RocketDelivery]) -> RocketDelivery | None:
        tags = self._settings.subscription.tags
        while (record := self._next_record()) is not None:
            if record.queue_offset >= self._frontier:
                wanted = tags is None or record.property_map().get(TAGS) in tags
                if wanted and (delivery := self._delivery(record, seen, settler)) is not None:
                    return delivery
                self._frontier = record.queue_offset + 1
            self._pass(record)
        return None

    def _delivery(
        self, record: Record, seen: Callable[[int | str], bool], settler: Settler[RocketDelivery]
    ) -> RocketDelivery | None:
        """Hand a message out; ``None`` if it was seen or is damaged and to be skipped."""
        where, offset = self.where, record.queue_offset
        topic = original_topic(record, where, self._settings.namespace)
        try:
            fields = received_fields(topic, where.partition, record)
        except CorruptRecord:
            if not self._settings.skip_corrupt:
                raise
            return None
        if seen(fields["message_id"]):
            return None
        self._pass(record)
        entry = InHand(offset, offset + 1, NO_MESSAGE)
        return RocketDelivery(
            **fields,
            attempt=self._enter(entry),
            generation=self.generation,
            where=where,
            log_offset=record.physical_offset,
            entry=entry,
            settler=settler,
        )

    def _next_record(self) -> Record | None:
        """Return the next message that is buffered; it stays the next one until ``_pass``."""
        while True:
            if self._current is not None:
                return self._current
            self._current = next(self._batch, None)
            if self._current is None and not self._next_batch():
                return None

    def _pass(self, record: Record) -> None:
        if self._current is record:
            self._current = None

    def _next_batch(self) -> bool:
        """Decode the next record; return whether there was an answer left to look into."""
        found = self._found
        if found is None or self._at >= len(found.data):
            return self._next_answer()
        try:
            record = read_record(found.data, self._at)
            self._batch = iter(unwrapped(record) if record.sys_flag & INNER_BATCH else (record,))
        except CorruptRecord as error:
            if not self._settings.skip_corrupt:
                raise CorruptRecord(
                    f"{self.where} at offset {self._frontier} or later", error.offset, error.size, error.reason
                ) from None
            self._at = self._at + error.size if error.size > 0 else len(found.data)
        else:
            self._at += record.size
        return True

    def _next_answer(self) -> bool:
        if self._found is not None:
            self._frontier = max(self._frontier, self._found.next_offset)
            self._buffered -= len(self._found.data)
            self._found = None
        if not self._answers:
            return False
        answer = self._answers.popleft()
        if isinstance(answer, Moved):
            self._frontier = answer.first
        else:
            self._found, self._at = answer, 0
        return True
