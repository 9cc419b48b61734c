"""Delayed messages: DELAY (a level), or a delivery time (TIMER_DELIVER_MS and others).

Those with a level wait in ``SCHEDULE_TOPIC_XXXX``, in the queue of their level, the others in ``rmq_sys_wheel_timer``.
A level above the highest means the highest, one below 1 no delay; a level overrides a delivery time. A time in the past
means now. Source: docs/rocketmq-broker.md, "Delayed messages".
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from metaq.formats.rocketmq.properties import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    parse_properties,
)
from metaq_broker.clock import Clock
from metaq_broker.log.engine.outcomes import BlockInvalid, Refusal
from metaq_broker.rocketmq.delays.level_queues import IDLE_MS, LevelQueues
from metaq_broker.rocketmq.delays.levels import DelayLevels
from metaq_broker.rocketmq.delays.timed_queue import TimedQueue
from metaq_broker.rocketmq.delays.waiting import Read, WaitingMessage
from metaq_broker.rocketmq.delays.waiting_messages import (
    REAL_QUEUE,
    REAL_TOPIC,
    SentMessage,
    number_of,
    read_waiting,
    real_queue,
    to_move,
    with_properties,
)
from metaq_broker.rocketmq.messages.message_store import MessageStore, OnStored, OutgoingMessage, StoredBatch
from metaq_broker.rocketmq.moves.log import MoveTable, Queue
from metaq_broker.rocketmq.moves.mover import Mover
from metaq_broker.rocketmq.moves.rounds import Rounds
from metaq_broker.rocketmq.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC

DUE_MS: Final = "TIMER_OUT_MS"
"""Property with the delivery time of a waiting message."""

RECALL_HANDLE: Final = "recallHandle"
HANDLE_VERSION: Final = "v1"

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")

TIMER_MAX_MS: Final = 3 * 86_400_000
"""Longest time to a delivery time."""


@dataclass(frozen=True, slots=True)
class Level:
    """Wait for a delay level, 1 to 18 as configured."""

    number: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Wait until ``due_ms``, milliseconds since 1970."""

    due_ms: int


@dataclass(frozen=True, slots=True)
class DelayInvalid(Refusal):
    """A delay property is not a number."""

    reason: str


@dataclass(frozen=True, slots=True)
class TooManyWaiting(Refusal):
    """The limit of timed messages is reached."""

    reason: str


Delay = Level | Moment


def recall_handle(topic: str, broker_name: str, due_ms: int, message_id: str) -> str:
    """Return the recall handle of a timed message; see ``recalls``."""
    text = f"{HANDLE_VERSION} {topic} {broker_name} {due_ms} {message_id}"
    return urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


class DelayedDelivery:
    """An ``Interceptor`` of sends."""

    def __init__(
        self,
        store: MessageStore,
        mover: Mover[OutgoingMessage],
        state: MoveTable,
        rounds: Rounds,
        clock: Clock,
        levels: DelayLevels | None = None,
        broker_name: str = "",
    ) -> None:
        self._store, self._rounds, self._clock, self._broker_name = store, rounds, clock, broker_name
        self.levels = DelayLevels.parse() if levels is None else levels
        wake = rounds.wake
        self._levels = LevelQueues(self.levels, WaitingTopic(store, SCHEDULE_TOPIC, wake), mover, state, wake)
        self.timed = TimedQueue(WaitingTopic(store, TIMER_TOPIC, wake), mover, state, wake)
        rounds.add(self._levels.run)
        rounds.add(self.timed.run)

    def needed_from(self, topic: str, queue: int) -> int | None:
        """Return the first queue offset of a topic of waiting messages that is not delivered."""
        if topic == TIMER_TOPIC:
            return self.timed.below
        return self.positions.get(queue + 1) if topic == SCHEDULE_TOPIC else None

    @property
    def positions(self) -> dict[int, int]:
        """Up to which queue offset each level is delivered (45)."""
        return self._levels.positions()

    @property
    def progress(self) -> dict[int, tuple[int, int]]:
        """The same, with the queue offset at which the level's queue ends (28)."""
        return self._levels.progress()

    # ---- the requested delay

    def delay_of(self, properties: Mapping[str, str]) -> Delay | Refusal | None:
        """Return the delay of a message with these properties, ``None`` = no delay."""
        if DELAY not in properties:
            return self.moment_of(properties)
        try:
            level = self.levels.nearest(_number(properties, DELAY))
        except ValueError as error:
            return DelayInvalid(str(error))
        return Level(level) if level else None

    def moment_of(self, properties: Mapping[str, str]) -> Moment | Refusal | None:
        """Return the delivery time of a message with these properties, ``None`` = now, or when its level says."""
        if DELAY in properties:
            return None
        try:
            due_ms = self._due_ms(properties)
        except ValueError as error:
            return DelayInvalid(str(error))
        clocks_ms = self._clock.now_ms(), self._store.steady_ms()  # one of them may be wrong
        if due_ms is None or due_ms <= min(clocks_ms):
            return None
        if due_ms - max(clocks_ms) > TIMER_MAX_MS:
            return BlockInvalid(
                f"timer message illegal, the delay time should not be bigger than the max delay {TIMER_MAX_MS}ms"
            )
        return Moment(due_ms)

    def _due_ms(self, properties: Mapping[str, str]) -> int | None:
        if TIMER_DELIVER_MS in properties:
            return _number(properties, TIMER_DELIVER_MS)
        if TIMER_DELAY_MS in properties:
            return self._clock.now_ms() + _number(properties, TIMER_DELAY_MS)
        if TIMER_DELAY_SEC in properties:
            return self._clock.now_ms() + 1000 * _number(properties, TIMER_DELAY_SEC)
        return None

    # ---- storing

    def store(self, topic: str, queue: int, message: OutgoingMessage, delay: Delay, done: OnStored) -> None:
        """Store a message that is delivered to ``topic`` when due; ``done`` gets its position in the waiting queue."""
        if (refusal := self._store.put_refusal(topic, queue)) is not None:  # it would hold up its level when it is due
            done(refusal)
            return
        added = {REAL_TOPIC: topic, REAL_QUEUE: str(queue)}
        if isinstance(delay, Level):
            added[DELAY] = str(delay.number)
        else:
            added[DUE_MS] = str(delay.due_ms)
            if (full := self.full) is not None:
                done(full)
                return
        waiting = with_properties(message, added)
        if isinstance(waiting, Refusal):
            done(waiting)
        elif isinstance(delay, Level):
            soon = self.levels.delay_ms(delay.number) < IDLE_MS
            self._store.append(SCHEDULE_TOPIC, delay.number - 1, [waiting], self._then_wake(done) if soon else done)
        else:
            self._store.append(TIMER_TOPIC, 0, [waiting], self._then_wake(done))

    @property
    def full(self) -> TooManyWaiting | None:
        """Why no more messages may wait for a moment, ``None`` if they may."""
        if not self.timed.is_full:
            return None
        return TooManyWaiting(f"{self.timed.waiting_max} messages wait for their time, and no more are allowed")

    def _then_wake(self, done: OnStored) -> OnStored:
        def stored(outcome: StoredBatch | Refusal) -> None:
            done(outcome)
            self._rounds.wake()

        return stored

    @property
    def markers(self) -> tuple[str, ...]:
        """Properties of a message that may have to wait."""
        return DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS

    def accept(self, send: SentMessage, message: OutgoingMessage, done: OnStored) -> bool:
        """Take over a delayed message; return whether it was taken over."""
        delay = self.delay_of(parse_properties(message.properties))
        if delay is None:
            return False
        if isinstance(delay, Refusal):
            done(delay)
        else:
            self.store(send.header.topic, send.queue, message, delay, self._with_handle(send, delay, done))
        return True

    def fault_of_batch(self, topic: str, sys_flag: int, properties: Mapping[str, str]) -> Refusal | None:
        """Messages that wait are sent one by one."""
        delay = self.delay_of(properties)
        if delay is None or isinstance(delay, Refusal):
            return delay
        return BlockInvalid("the messages of a batch cannot be delayed; send them one by one")

    def _with_handle(self, send: SentMessage, delay: Delay, done: OnStored) -> OnStored:
        """Add the recall handle of a timed message to the response."""
        if not isinstance(delay, Moment):
            return done
        topic, due_ms = send.header.topic, delay.due_ms

        def stored(outcome: StoredBatch | Refusal) -> None:
            if isinstance(outcome, StoredBatch):
                message_id = outcome.message_ids()[0]
                send.fields[RECALL_HANDLE] = recall_handle(topic, self._broker_name, due_ms, message_id)
            done(outcome)

        return stored


class WaitingTopic:
    """``WaitingLog`` on a system topic."""

    def __init__(self, store: MessageStore, topic: str, wake: Callable[[], None]) -> None:
        self._store, self._topic, self._wake = store, topic, wake

    def end(self, queue: int) -> int:
        return self._store.max_offset(self._topic, queue)

    def renumbered(self, queue: int) -> int | None:
        return self._store.renumbered(self._topic, queue)

    def fault(self, queue: int) -> Refusal | None:
        return self._store.fault(self._topic, queue)

    def read(self, queue: int, first: int, count: int) -> Read[OutgoingMessage] | Refusal:
        read = read_waiting(self._store, Queue(self._topic, queue), first, count, self._wake)
        if isinstance(read, Refusal):
            return read
        waiting = []
        for record in read[0]:
            properties = record.property_map()
            stored_ms = self._store.steady_time_of(record.store_timestamp)
            waiting.append(
                WaitingMessage(
                    record.queue_offset,
                    record.physical_offset,
                    stored_ms,
                    self._due_ms(number_of(properties.get(DUE_MS)) or 0, record.store_timestamp, stored_ms),
                    real_queue(properties),
                    to_move(record),
                    record.size,
                )
            )
        return Read(waiting, read[1])

    def _due_ms(self, due_ms: int, wall_ms: int, stored_ms: int) -> int:
        """Return when a message is due that was stored at ``wall_ms``, on the line without jumps: of two, the later."""
        return max(stored_ms + due_ms - wall_ms, self._store.steady_time_of(due_ms))


def _number(properties: Mapping[str, str], name: str) -> int:
    text = properties[name]
    if not _NUMBER.fullmatch(text):  # int() takes blanks and underscores, too
        raise ValueError(f"property {name}={text[:80]!r}: a number of at most 19 digits is expected")
    return int(text)
