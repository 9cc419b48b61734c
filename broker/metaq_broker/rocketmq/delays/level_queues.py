"""Messages that wait for a delay level: one queue for each level, in which all wait equally long.

So the first one of a queue is the first that is due, and all that is kept is how far each queue is delivered: a
*position*, durable in the state table. Thousands of waiting messages cost nothing but their bytes on the disk.

A message is due when the level's delay has passed since it was stored. If the clock was set back it does not wait
longer than the delay from now on. Messages are delivered in batches; one batch of a level is under way at a time, so
those of a level stay in order. What the disk refuses is tried again after ``RETRY_MS``, and so is a level with which
anything else went wrong while the others go on; either is logged once a minute. A position behind the end of its queue
is of a newer copy of the log than this one; it goes back to the end. One in a queue that was numbered anew goes to its
start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Generic, TypeVar

from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.rocketmq.delays.levels import DelayLevels
from metaq_broker.rocketmq.delays.waiting import WaitingLog, WaitingMessage
from metaq_broker.rocketmq.moves.fault_reports import FaultReports
from metaq_broker.rocketmq.moves.log import State, save
from metaq_broker.rocketmq.moves.many import move_all
from metaq_broker.rocketmq.moves.mover import Mover, Receipt

_LOG: Final = logging.getLogger(__name__)

M = TypeVar("M")
BATCH_MESSAGES: Final = 64
RETRY_MS: Final = 1_000
IDLE_MS: Final = 1_000
"""The longest time between two looks at a queue: the clock may have been set meanwhile."""


@dataclass(slots=True, eq=False)
class _Level:
    number: int
    delay_ms: int
    position: int
    busy: bool = False
    not_before_ms: int = 0
    hold: Receipt | None = None

    @property
    def queue(self) -> int:
        return self.number - 1

    @property
    def key(self) -> str:
        return level_key(self.number)


class LevelQueues(Generic[M]):
    """Call ``run`` when it says, and behind each call of ``wake``: there is more to do then."""

    def __init__(
        self, levels: DelayLevels, log: WaitingLog[M], mover: Mover[M], state: State, wake: Callable[[], None]
    ) -> None:
        self.levels = levels
        self._log, self._mover, self._state = log, mover, state
        self._levels = [
            _Level(number, delay_ms, _position(state.get(level_key(number))), hold=mover.hold())
            for number, delay_ms in enumerate(levels.delays_ms, 1)
        ]
        self._wake = wake
        self._now_ms = 0
        self._reports = FaultReports()
        for level in self._levels:  # before there are new messages, which are not to count as delivered
            if (first := log.renumbered(level.queue)) is not None:
                fields = {"level": level.number, "position": level.position, "first": first}
                _LOG.warning(
                    "delayed messages: the queue was numbered anew; all are delivered", extra={"fields": fields}
                )
                self._note(level, first, ())
            elif (end := log.end(level.queue)) < level.position:
                self._go_back(level, end)

    def positions(self) -> dict[int, int]:
        """Return up to which ordinal each level is delivered."""
        return {level.number: level.position for level in self._levels}

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return up to which ordinal each level is delivered, and where its queue ends."""
        return {level.number: (level.position, self._log.end(level.queue)) for level in self._levels}

    def run(self, now_ms: int) -> int:
        """Deliver what is due; return when to look again. Deliveries go on after this has returned."""
        self._now_ms = now_ms
        return min(self._try_level(level, now_ms) for level in self._levels)

    def _try_level(self, level: _Level, now_ms: int) -> int:
        """Deliver what is due of one level, whatever goes wrong with it: the others go on."""
        try:
            return self._run_level(level, now_ms)
        except Exception as error:
            level.not_before_ms = now_ms + RETRY_MS
            if times := self._reports.count((level.number, "defect"), now_ms):
                fields = {"level": level.number, "position": level.position, "times": times}
                _LOG.error("delayed messages of a level not delivered yet", exc_info=error, extra={"fields": fields})
            return level.not_before_ms

    def _run_level(self, level: _Level, now_ms: int) -> int:
        while not level.busy:
            if now_ms < level.not_before_ms <= now_ms + RETRY_MS:
                return level.not_before_ms
            end = self._log.end(level.queue)
            if end < level.position and (refusal := self._go_back(level, end)) is not None:
                self._failed(level, refusal)
                continue
            if end <= level.position:
                self._caught_up(level)
                break
            read = self._log.read(level.queue, level.position, BATCH_MESSAGES)
            if isinstance(read, Refusal):
                self._failed(level, read)
                continue
            if read.waiting and read.waiting[0].ordinal > level.position:
                _LOG.error(
                    "delayed messages were removed before they were due",
                    extra={"fields": {"level": level.number, "messages": read.waiting[0].ordinal - level.position}},
                )
            due = read.waiting[: self._due_count(level, read.waiting, now_ms)]
            if due:
                self._deliver(level, due)
            elif read.waiting:
                self._caught_up(level)
                return min(self._due_ms(level, read.waiting[0], now_ms), now_ms + IDLE_MS)
            elif read.next_ordinal > level.position:
                self._note(level, read.next_ordinal, ())
            else:
                break
        return now_ms + IDLE_MS

    def _go_back(self, level: _Level, end: int) -> Refusal | None:
        """Go on at the end of the queue, unless it cannot be read now: then return why."""
        refusal = self._log.fault(level.queue)
        if refusal is None:
            fields = {"level": level.number, "position": level.position, "end": end}
            _LOG.warning("delayed messages: the position is behind the end of the queue", extra={"fields": fields})
            self._note(level, end, ())
        return refusal

    def _due_count(self, level: _Level, waiting: Sequence[WaitingMessage[M]], now_ms: int) -> int:
        """How many of them are due. What was moved before a restart was due, and so were those before it."""
        count = sum(1 for _ in takewhile(lambda each: self._due_ms(level, each, now_ms) <= now_ms, waiting))
        moved = [at for at, each in enumerate(waiting, 1) if self._mover.was_moved(each.origin)]
        return max([count, *moved])

    def _due_ms(self, level: _Level, waiting: WaitingMessage[M], now_ms: int) -> int:
        due_ms = waiting.stored_ms + level.delay_ms
        return now_ms if due_ms > now_ms + level.delay_ms else due_ms

    def _deliver(self, level: _Level, due: Sequence[WaitingMessage[M]]) -> None:
        level.busy = True

        def moved(outcome: Sequence[Receipt] | Refusal) -> None:
            level.busy = False
            if isinstance(outcome, Refusal):
                self._failed(level, outcome)
            else:
                self._note(level, due[-1].ordinal + 1, outcome)
                self._wake()

        move_all(self._mover, due, moved)

    def _note(self, level: _Level, position: int, receipts: Sequence[Receipt]) -> None:
        level.position = position

        def saved(error: Exception | None) -> None:
            if error is not None:  # the floors stay, so nothing is doubled
                _LOG.error("position not saved", extra={"fields": {"level": level.number, "reason": error}})
                return
            for receipt in receipts:
                receipt.noted()

        save(self._state, level.key, str(position).encode(), saved)

    def _caught_up(self, level: _Level) -> None:
        """All that was due is delivered; what was moved before a restart is among it, and noted."""
        if level.hold is not None:
            self._note(level, level.position, (level.hold,))
            level.hold = None

    def _failed(self, level: _Level, refusal: Refusal) -> None:
        level.not_before_ms = self._now_ms + RETRY_MS
        if times := self._reports.count((level.number, "refusal"), self._now_ms):
            fields = {"level": level.number, "position": level.position, "reason": refusal, "times": times}
            _LOG.warning("delayed messages not delivered yet", extra={"fields": fields})


def level_key(number: int) -> str:
    """Return the key of a level's position in the state: a number in decimal."""
    return f"delay/{number}"


def _position(value: bytes | None) -> int:
    return 0 if value is None else int(value)
