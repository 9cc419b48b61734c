"""Messages that wait for a delay level: one queue for each level, in which all wait equally long.

So the first message of a queue is due first, and only the delivered *position* of each queue is stored, in the state
table. Waiting messages cost only their bytes on the disk. A level that is not configured any more, and has messages
that wait, has the delay of the highest one until the next start.

A message is due when the level's delay has passed since it was stored. If the clock is behind its store time, because
it was set back or a former master's was ahead, it waits at most the delay from then on. Messages are delivered in
batches; one batch of a level is in progress at a time, so the messages of a level stay in order. Deliveries that the
disk refuses are retried after ``RETRY_MS``, and so is a level with any other error, while the other levels continue;
errors are logged once a minute. A position beyond the end of its queue belongs to a newer copy of the log; it is reset
to the end. A position in a renumbered queue is reset to its start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Generic, TypeVar

from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.rocketmq.delays.levels import LEVELS_MAX, DelayLevels
from metaq_broker.rocketmq.delays.waiting import WaitingLog, WaitingMessage
from metaq_broker.rocketmq.moves.log import MoveTable, save
from metaq_broker.rocketmq.moves.many import move_all
from metaq_broker.rocketmq.moves.mover import Mover, MoveReceipt
from metaq_broker.rocketmq.moves.rounds import FaultReports

_LOG: Final = logging.getLogger(__name__)

M = TypeVar("M")
BATCH_MESSAGES: Final = 64
RETRY_MS: Final = 1_000
IDLE_MS: Final = 1_000
"""The longest time between two checks of a queue: the clock may have been set meanwhile."""


@dataclass(slots=True, eq=False)
class _Level:
    number: int
    delay_ms: int
    position: int
    busy: bool = False
    not_before_ms: int = 0
    hold: MoveReceipt | None = None
    latest: tuple[int, int] = 0, 0
    """An ordinal, and when messages before it are due at the latest: the clock was seen to be behind their times."""

    @property
    def queue(self) -> int:
        return self.number - 1

    @property
    def key(self) -> str:
        return level_key(self.number)


class LevelQueues(Generic[M]):
    """Delivers messages by level. Call ``run`` at the time that it returns, and after each call of ``wake``."""

    def __init__(
        self, levels: DelayLevels, log: WaitingLog[M], mover: Mover[M], state: MoveTable, wake: Callable[[], None]
    ) -> None:
        self.levels = levels
        self._log, self._mover, self._state = log, mover, state
        self._levels = [
            _Level(number, levels.delay_ms(levels.nearest(number)), position, hold=mover.hold())
            for number in range(1, LEVELS_MAX + 1)
            for position in [_position(state.get(level_key(number)))]
            if number <= levels.count or log.end(number - 1) > position or log.fault(number - 1) is not None
        ]
        self._wake = wake
        self._now_ms = 0
        self._reports = FaultReports()
        for level in self._levels:  # before new messages arrive, which must not count as delivered
            if (first := log.renumbered(level.queue)) is not None:
                fields = {"level": level.number, "position": level.position, "first": first}
                _LOG.warning("delayed messages: the queue was renumbered; all are delivered", extra={"fields": fields})
                self._note(level, first, ())
            elif (end := log.end(level.queue)) < level.position:
                self._go_back(level, end)

    def positions(self) -> dict[int, int]:
        """Return up to which ordinal each level is delivered."""
        return {level.number: level.position for level in self._levels}

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return the delivered ordinal of each level, and the end of its queue."""
        return {level.number: (level.position, self._log.end(level.queue)) for level in self._levels}

    def run(self, now_ms: int) -> int:
        """Deliver due messages; return when to call again. Deliveries continue after the return."""
        self._now_ms = now_ms
        return min(self._try_level(level, now_ms) for level in self._levels)

    def _try_level(self, level: _Level, now_ms: int) -> int:
        """Deliver due messages of one level; log any error, so that the other levels continue."""
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
        """Reset the position to the end of the queue; return the reason if the queue cannot be read now."""
        refusal = self._log.fault(level.queue)
        if refusal is None:
            fields = {"level": level.number, "position": level.position, "end": end}
            _LOG.warning("delayed messages: the position is beyond the end of the queue", extra={"fields": fields})
            self._note(level, end, ())
        return refusal

    def _due_count(self, level: _Level, waiting: Sequence[WaitingMessage[M]], now_ms: int) -> int:
        """Return how many are due. Messages moved before a restart were due, and so were earlier ones."""
        count = sum(1 for _ in takewhile(lambda each: self._due_ms(level, each, now_ms) <= now_ms, waiting))
        moved = [at for at, each in enumerate(waiting, 1) if self._mover.was_moved(each.origin)]
        return max([count, *moved])

    def _due_ms(self, level: _Level, waiting: WaitingMessage[M], now_ms: int) -> int:
        below, latest_ms = level.latest
        due_ms = waiting.stored_ms + level.delay_ms
        if waiting.ordinal < below:
            due_ms = min(due_ms, latest_ms)
        if due_ms > now_ms + level.delay_ms:
            due_ms = now_ms + level.delay_ms
            level.latest = self._log.end(level.queue), due_ms
        return due_ms

    def _deliver(self, level: _Level, due: Sequence[WaitingMessage[M]]) -> None:
        level.busy = True

        def moved(outcome: Sequence[MoveReceipt] | Refusal) -> None:
            level.busy = False
            if isinstance(outcome, Refusal):
                self._failed(level, outcome)
            else:
                self._note(level, due[-1].ordinal + 1, outcome)
                self._wake()

        move_all(self._mover, due, moved)

    def _note(self, level: _Level, position: int, receipts: Sequence[MoveReceipt]) -> None:
        level.position = position

        def saved(error: Exception | None) -> None:
            if error is not None:  # the floors are kept, so no message is delivered twice
                _LOG.error("position not saved", extra={"fields": {"level": level.number, "reason": error}})
                return
            for receipt in receipts:
                receipt.noted()

        save(self._state, level.key, str(position).encode(), saved)

    def _caught_up(self, level: _Level) -> None:
        """All due messages are delivered and recorded, including those moved before a restart."""
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
