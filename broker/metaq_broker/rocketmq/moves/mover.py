"""Moves waiting messages to their queues so that a crash between two steps neither loses nor doubles one.

A move has three steps, each of which begins when the previous one is durable::

    floor      the end of the target queue is in the state table
    append     the message is in the target queue, with its origin: the position where it waited
    note       the owner of the waiting message has recorded the move, and calls ``noted``

A crash between append and note would deliver a message twice. So after a restart ``recover`` reads the target queues
from their floors on: the origins found there were moved, and ``was_moved`` returns true for them.

A floor remains valid for later moves to the same queue, so only the first of them waits for the table. About once a
second, ``tick`` records the ends of the queues. When all moves that were in progress at that moment are noted, the
floors rise to these ends, so that a restart has little to read; floors of queues without moves meanwhile are dropped.
While a move is not noted, such as of a message whose neighbours wait for a closed queue, no floor rises, but floors
that no open move needs are dropped.

Everything runs on the event loop. Source: docs/rocketmq-broker.md.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from metaq_broker.log.engine.outcomes import Refusal, StorageFailed
from metaq_broker.rocketmq.moves.log import MoveLog, MoveTable, Origins, Queue, save

_LOG: Final = logging.getLogger(__name__)

M = TypeVar("M")
KEY: Final = "move/floors"
REFUSED_MAX: Final = 100
"""Limit on refused attempts to read the moves before a restart."""
QUEUES_MAX: Final = 1024
"""Queues with a floor at a time; above it a move is refused until floors have been dropped."""


@dataclass(slots=True, eq=False)
class _Period:
    """Moves that began between two ticks: how many are not noted yet, by where they went, and where all went.

    ``None`` in ``open``: moves before a restart, to any of ``queues``.
    """

    open: Counter[Queue | None] = field(default_factory=Counter)
    queues: set[Queue] = field(default_factory=set)

    def needs(self, queue: Queue) -> bool:
        """Return whether there may be moves to a queue that are not noted."""
        return queue in self.open or (None in self.open and queue in self.queues)


class MoveReceipt:
    """A moved message. Pass it to ``noted`` when the note is durable."""

    __slots__ = ("_period", "_queue")

    def __init__(self, period: _Period, queue: Queue | None) -> None:
        self._period: _Period | None = period
        self._queue = queue
        period.open[queue] += 1

    def noted(self) -> None:
        """Once is enough."""
        period, self._period = self._period, None
        if period is not None:
            period.open[self._queue] -= 1
            if not period.open[self._queue]:
                del period.open[self._queue]


Moved = Callable[[MoveReceipt | Refusal], None]


class Mover(Generic[M]):
    """Moves messages. Do not move any before ``recover`` has returned ``True``."""

    def __init__(self, log: MoveLog[M], state: MoveTable) -> None:
        self._log, self._state = log, state
        self._floors: dict[Queue, int] = {}
        self._durable: set[Queue] = set()
        self._waiting: dict[Queue, list[Callable[[Exception | None], None]]] = {}
        self._now, self._before = _Period(), _Period()
        self._ends: dict[Queue, int] = {}
        self.blocked = False
        """Whether the last part that ``recover`` tried could not be read now; it is tried again."""
        self._refused = 0
        self._moved: dict[int, MoveReceipt | None] = {}
        found = _read_floors(state.get(KEY))
        self._to_read = list(found.items())
        self._floors.update(found)
        self._durable.update(found)
        self._before.queues.update(found)

    # ---- after a restart

    def recover(self) -> bool:
        """Read a part of the messages that may be moves without notes; return whether all are read."""
        if not self._to_read:
            return True
        queue, first = self._to_read[-1]
        read = self._log.origins(queue, first)
        self.blocked = isinstance(read, Refusal)
        if isinstance(read, Refusal):
            self._refused += 1
            if self._refused < REFUSED_MAX:
                self._to_read.insert(0, self._to_read.pop())
                return False
            fields = {"topic": queue.topic, "queue": queue.number, "reason": read}
            _LOG.error("moved messages cannot be read: some may be delivered twice", extra={"fields": fields})
            read = Origins((), first)
        self._refused = 0
        self._moved.update(dict.fromkeys(read.found))
        if read.next_ordinal > first:
            self._to_read[-1] = (queue, read.next_ordinal)
        else:
            self._to_read.pop()
        return not self._to_read

    def was_moved(self, origin: int) -> bool:
        """Return whether the message that waited at ``origin`` was moved (before a restart or since) without a note."""
        return origin in self._moved

    def remember(self, origins: Iterable[int], receipt: MoveReceipt | None) -> None:
        """Remember moved messages for the next attempt, because others of the same unit were not moved."""
        self._moved.update(dict.fromkeys(origins, receipt))

    def forget(self, origins: Iterable[int]) -> list[MoveReceipt]:
        """Forget these messages; return their remembered receipts."""
        found = (self._moved.pop(origin, None) for origin in origins)
        return [receipt for receipt in found if receipt is not None]

    def hold(self) -> MoveReceipt:
        """Keep the found floors until all moves before the restart are noted; see ``MoveReceipt``."""
        return MoveReceipt(self._before, None)

    # ---- moving

    def move(self, queue: Queue, messages: Sequence[M], moved: Moved) -> None:
        """Append messages that waited to ``queue``; ``moved`` is called once, with a receipt when they are durable."""

        def floor_is_durable(error: Exception | None) -> None:
            if error is not None:
                moved(StorageFailed(str(error)))
                return
            self._now.queues.add(queue)
            receipt = MoveReceipt(self._now, queue)

            answered = False

            def stored(refusal: Refusal | None) -> None:
                nonlocal answered
                if answered:  # the caller's callback failed: do not report that as a refusal of the log
                    return
                answered = True
                if refusal is not None:
                    receipt.noted()  # there is nothing to note
                moved(receipt if refusal is None else refusal)

            try:
                self._log.append(queue, messages, stored)
            except Exception as error:
                stored(StorageFailed(f"{type(error).__name__}: {error}"))

        self._with_floor(queue, floor_is_durable)

    def _with_floor(self, queue: Queue, ready: Callable[[Exception | None], None]) -> None:
        end = self._log.end(queue)
        if queue in self._durable and self._floors[queue] <= end:
            ready(None)
            return
        if (waiting := self._waiting.get(queue)) is not None:
            waiting.append(ready)
            return
        if len(self._floors) >= QUEUES_MAX and queue not in self._floors:
            ready(RuntimeError(f"messages are being moved to {QUEUES_MAX} queues already"))
            return
        self._waiting[queue] = [ready]
        self._durable.discard(queue)
        self._floors[queue] = end  # may be lower than an existing floor if the topic was recreated
        self._ends.pop(queue, None)

        def written(error: Exception | None) -> None:
            if error is None:
                self._durable.add(queue)
            else:
                self._floors.pop(queue, None)
            for each in self._waiting.pop(queue):
                each(error)

        self._save(written)

    # ---- raising floors

    def tick(self) -> None:
        """Raise the floors as far as moves are noted. Call this about once a second."""
        if not (self._floors or self._now.queues):
            return
        is_open = bool(self._before.open)
        for queue in [each for each in self._floors if each not in self._waiting]:
            if queue in self._ends and not is_open:
                self._floors[queue] = max(self._floors[queue], self._ends[queue])
            if self._is_idle(queue, is_open):
                del self._floors[queue]
                self._durable.discard(queue)
        if not is_open:
            self._before, self._now = self._now, _Period()
            self._ends = {queue: self._log.end(queue) for queue in self._floors}
        self._save(None)

    def _is_idle(self, queue: Queue, is_open: bool) -> bool:
        """Return whether a queue needs no floor."""
        if is_open:
            return not (self._before.needs(queue) or self._now.needs(queue))
        return queue not in self._now.queues and queue not in self._before.queues

    def _save(self, saved: Callable[[Exception | None], None] | None) -> None:
        floors = json.dumps([[queue.topic, queue.number, floor] for queue, floor in self._floors.items()]).encode()
        if saved is not None:
            save(self._state, KEY, floors, saved)
        elif floors != self._state.get(KEY):
            save(self._state, KEY, floors)


def _read_floors(value: bytes | None) -> dict[Queue, int]:
    return {} if value is None else {Queue(topic, number): floor for topic, number, floor in json.loads(value)}
