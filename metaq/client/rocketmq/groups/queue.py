"""A queue that a consumer owns: pulled answers, and their messages. Pure.

Answers are stored as received and decoded when a message is delivered. A broker compares hashes of tags, and sends
inner batches as one record, so tags and offsets are checked here before a message is delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from metaq.backends.rocketmq.reads.pulls import ALL, Moved, NotYet, PulledRecords, Subscription
from metaq.backends.rocketmq.reads.waiting_pulls import Outcome
from metaq.client.groups.deliveries import Settler
from metaq.client.groups.owned import POLL_STEPS, Chunk, OffsetJump, Owned
from metaq.client.rocketmq.groups.deliveries import RocketDelivery, original_topic
from metaq.client.rocketmq.records import received_fields
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import CorruptRecord, MetaqError
from metaq.formats.rocketmq.properties import TAGS
from metaq.formats.rocketmq.records import Record, read_record, unwrapped
from metaq.formats.rocketmq.sys_flags import INNER_BATCH
from metaq.model import TopicPartition

WAITED_S: Final = 0.5
"""If a broker answers "nothing new" sooner, it did not wait for messages; the next pull is delayed."""


class QueueAnswer(NamedTuple):
    """A broker's answer to a pull, and whether it is from the master: only the master knows where the queue ends."""

    outcome: Outcome
    from_master: bool


@dataclass(frozen=True, eq=False)
class Pull:
    """A pull of ``where`` at ``offset``, sent to the broker with this id at ``asked_s``."""

    where: TopicPartition
    offset: int
    broker_id: int
    asked_s: float


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How queues are read. ``buffer_bytes``: bytes of a queue that are pulled ahead; ``poll_max_s``: longest pause
    after an answer without messages.
    """

    subscription: Subscription = ALL
    namespace: str | None = None
    buffer_bytes: int = 1 << 20
    poll_max_s: float = 1.0
    skip_corrupt: bool = False


class OwnedQueue(Owned[RocketDelivery, Pull, QueueAnswer]):
    """A RocketMQ queue. Not thread-safe."""

    def __init__(
        self,
        where: TopicPartition,
        start: GroupOffset,
        generation: int,
        settings: QueueSettings,
        settler: Settler,
        saved: GroupOffset | None = None,
    ) -> None:
        super().__init__(where, start, generation, settler, saved)
        self._settings = settings
        self._broker_id = 0
        self._pause_s = 0.0
        self._restart(start.offset)

    def _restart(self, offset: int) -> None:
        self._fetched = self._end = offset  # of the pulled and of the decoded messages
        self._answers: deque[PulledRecords | Moved] = deque()
        self._buffered = 0
        self._found: PulledRecords | None = None
        self._at = 0  # position of its next record
        self._batch: Iterator[Record] = iter(())  # rest of a record with several messages
        self._current: Record | None = None  # the next message to check
        self._asked: Pull | None = None

    # fetching

    def request(self, now_s: float) -> Pull | None:
        if self._waits() or now_s < self._not_before:
            return None
        self._asked = Pull(self.where, self._fetched, self._broker_id, now_s)
        return self._asked

    def next_request_s(self) -> float | None:
        return None if self._waits() else self._not_before

    def _waits(self) -> bool:
        full = self._buffered >= self._share_of(self._settings.buffer_bytes)
        return self.rests or self._asked is not None or full

    def fetched(self, request: Pull, outcome: QueueAnswer | None, now_s: float) -> OffsetJump | None:
        if request is not self._asked:
            return None  # rolled back meanwhile
        self._asked = None
        if outcome is None:
            self._broker_id = 0
            self._pause(now_s)
            return None
        match outcome.outcome:
            case PulledRecords() as found:
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

    def _move(self, asked: int, moved: Moved, from_master: bool, now_s: float) -> OffsetJump | None:
        # a new queue: it ends before the position, and has its first message
        is_another = moved.first == 0 and from_master
        to = moved.first if asked < moved.first or is_another else moved.end
        if to == asked or not (from_master or to > asked):  # a slave may be behind
            self._broker_id = 0
            self._pause(now_s)
            return None
        self._answers.append(Moved(to, to))  # earlier answers are processed first
        self._fetched = to
        return OffsetJump(self.where, asked, to)

    def _pause(self, now_s: float) -> None:
        self._pause_s = min(self._settings.poll_max_s, self._pause_s + self._settings.poll_max_s / POLL_STEPS)
        self._not_before = now_s + self._pause_s

    # delivery

    def _decode(self) -> Chunk[RocketDelivery] | None:
        """Decode the rest of one answer: the messages of several would exceed the buffer's size."""
        if self._found is None:
            if not self._answers:
                return None
            self._begin(self._answers.popleft())
        messages: list[RocketDelivery] = []
        try:
            while (record := self._next_record()) is not None:
                if record.queue_offset >= self._end:
                    messages += self._wanted(record)
                    self._end = record.queue_offset + 1
                self._current = None
        except MetaqError:
            if not messages:
                raise  # deliver the messages before it first; this error is found again
        else:
            self._end_answer()
        return Chunk(messages, self._end)

    def _wanted(self, record: Record) -> list[RocketDelivery]:
        """Return the message of a record; empty if its tag does not match, or if it is damaged and skipped."""
        tags, where = self._settings.subscription.tags, self.where
        if not (tags.is_all or tags.matches(record.property_map().get(TAGS))):
            return []
        topic = original_topic(record, where, self._settings.namespace)
        try:
            fields = received_fields(topic, where.partition, record)
        except CorruptRecord:
            if not self._settings.skip_corrupt:
                raise
            return []
        own: dict[str, Any] = {"where": where, "log_offset": record.physical_offset, "epoch": self._epoch}
        return [RocketDelivery(**fields, **own, attempt=1)]

    def _next_record(self) -> Record | None:
        """Return the next message of the answer; it stays the current one until it was processed."""
        while self._current is None:
            self._current = next(self._batch, None)
            if self._current is None and not self._next_batch():
                return None
        return self._current

    def _next_batch(self) -> bool:
        """Decode the next record; return whether there was one."""
        found = self._found
        if found is None or self._at >= len(found.data):
            return False
        try:
            record = read_record(found.data, self._at)
            self._batch = iter(unwrapped(record) if record.sys_flag & INNER_BATCH else (record,))
        except CorruptRecord as error:
            if not self._settings.skip_corrupt:
                raise CorruptRecord(
                    f"{self.where} at offset {self._end} or later", error.offset, error.size, error.reason
                ) from None
            self._at = self._at + error.size if error.size > 0 else len(found.data)
        else:
            self._at += record.size
        return True

    def _begin(self, answer: PulledRecords | Moved) -> None:
        if isinstance(answer, Moved):
            self._end = answer.first
        else:
            self._found, self._at = answer, 0

    def _end_answer(self) -> None:
        if self._found is not None:
            self._end = max(self._end, self._found.next_offset)
            self._buffered -= len(self._found.data)
            self._found = None
