"""Timed messages in one queue, in any order of their delivery times.

Delivery time and ordinal of each are in memory (``DueTimes``). The state table has the finished ones (``Finished``).
After a restart the queue is read from the first waiting message on, a part with each ``run``, including messages that
are stored meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.rocketmq.delays.due_times import DueTimes
from metaq_broker.rocketmq.delays.finished import Finished
from metaq_broker.rocketmq.delays.level_queues import BATCH_MESSAGES, IDLE_MS, RETRY_MS
from metaq_broker.rocketmq.delays.waiting import WaitingLog, WaitingMessage
from metaq_broker.rocketmq.moves.log import MoveTable, Saved
from metaq_broker.rocketmq.moves.many import move_all
from metaq_broker.rocketmq.moves.mover import Mover, MoveReceipt
from metaq_broker.rocketmq.moves.rounds import FaultReports

_LOG: Final = logging.getLogger(__name__)

M = TypeVar("M")
KEY: Final = "delay/timed"
WAITING_MAX: Final = 1_000_000
BATCH_BYTES: Final = 1 << 20
PAUSE_MS: Final = 100
"""Pause after a round in which no message could be delivered: the disk may be full."""
READ_MESSAGES: Final = 256
"""Messages that are read at a time after a restart: this takes some milliseconds of the event loop."""


class TimedQueue(Generic[M]):
    """Delivers timed messages; ``run`` and ``wake`` as in ``LevelQueues``. At most ``waiting_max`` messages wait."""

    def __init__(
        self,
        log: WaitingLog[M],
        mover: Mover[M],
        state: MoveTable,
        wake: Callable[[], None],
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self.waiting_max = waiting_max
        self._wake = wake
        self._log, self._mover, self._checked = log, mover, False
        self._finished = Finished(state, KEY)
        self._times = DueTimes()
        self._next = self._finished.below
        self._hold: MoveReceipt | None = mover.hold()
        self._busy = False
        self._not_before_ms = 0
        self._now_ms = 0
        self._reports = FaultReports()
        self._taken: list[WaitingMessage[M]] = []
        self._check()  # before new messages arrive, which must not count as finished

    def __len__(self) -> int:
        """Number of waiting messages, as far as the queue was read."""
        return len(self._times) + len(self._taken)

    @property
    def below(self) -> int:
        """The ordinal below which no message waits."""
        return self._finished.below

    @property
    def is_full(self) -> bool:
        """Whether no more messages may be stored now."""
        return len(self) >= self.waiting_max

    def waits(self, ordinal: int) -> bool:
        """Return whether a message is neither delivered nor recalled; one being delivered counts as delivered."""
        under_way = any(each.ordinal == ordinal for each in self._taken)
        return ordinal not in self._finished and not under_way and ordinal < self._log.end(0)

    def recall(self, ordinal: int, saved: Saved) -> None:
        """Cancel the delivery of a message that ``waits``; ``saved`` is called once, when that is durable.

        With ``StateNotWritten`` it is cancelled in memory, and written later. With another error it still waits.
        """
        self._finished.add_saved(ordinal, saved)

    def run(self, now_ms: int) -> int:
        """Deliver due messages; return when to call again. Deliveries continue after the return."""
        self._now_ms = now_ms
        caught_up = self._load()
        while not self._busy and not now_ms < self._not_before_ms <= now_ms + RETRY_MS:
            if not self._taken and not self._take(now_ms):
                break
            if self._taken:
                self._deliver()
        if not caught_up:
            return now_ms
        if self._hold is not None:
            self._finished.when_saved(self._recovered_saved)
        next_ms = self._times.next_ms()
        return now_ms + IDLE_MS if next_ms is None else min(max(next_ms, self._not_before_ms), now_ms + IDLE_MS)

    def _load(self) -> bool:
        """Read some messages that are not known yet; return whether all are."""
        if not self._checked and not self._check():
            return True
        if self._log.end(0) <= self._next:
            return True
        read = self._log.read(0, self._next, READ_MESSAGES)
        if isinstance(read, Refusal):
            if times := self._reports.count("load", self._now_ms):
                fields = {"reason": read, "times": times}
                _LOG.error("messages that wait for a time cannot be read", extra={"fields": fields})
            return True
        if read.waiting and read.waiting[0].ordinal > self._next == self._finished.below:
            _LOG.error("delayed messages were removed before they were due", extra={"fields": {"below": self._next}})
            self._finished.begin_at(read.waiting[0].ordinal, keep=True)
        moved = [each for each in read.waiting if self._mover.was_moved(each.origin)]
        self._finished.add(each.ordinal for each in moved)
        for each in read.waiting:
            if each.ordinal not in self._finished:
                self._times.add(max(each.due_ms, 0), each.ordinal)
        self._next = max(read.next_ordinal, self._next)
        return self._log.end(0) <= self._next

    def _check(self) -> bool:
        """Unmark finished ordinals that are not in the queue; return whether the queue could be read."""
        if self._log.fault(0) is not None:
            return False
        end, first = self._log.end(0), self._log.renumbered(0)
        if first is not None:
            fields = {"first": first}
            _LOG.warning("timed messages: the queue was renumbered; all are delivered", extra={"fields": fields})
            self._finished.begin_at(first, keep=False)
        elif self._finished.cut(end):
            _LOG.warning("timed messages: more are finished than there are", extra={"fields": {"end": end}})
        self._next, self._checked = self._finished.below, True
        return True

    def _recovered_saved(self, error: Exception | None) -> None:
        if error is None and self._hold is not None:
            self._hold.noted()
            self._hold = None

    def _take(self, now_ms: int) -> bool:
        """Read the next messages that are due; return whether there are any."""
        ordinals = [each for each in self._times.take(now_ms, BATCH_MESSAGES) if each not in self._finished]
        gone: list[int] = []
        broken = 0
        for at, ordinal in enumerate(ordinals):
            is_enough = sum(each.size for each in self._taken) >= BATCH_BYTES
            try:
                read = None if is_enough else self._log.read(0, ordinal, 1)
            except Exception as error:  # an error of this message; the others continue
                self._put_off(ordinal, error)
                broken += 1
                continue
            if read is None or isinstance(read, Refusal):
                for left in ordinals[at:]:
                    self._times.add(now_ms, left)
                if read is not None:
                    self._not_before_ms = now_ms + RETRY_MS
                break
            if read.waiting and read.waiting[0].ordinal == ordinal:
                self._taken.append(read.waiting[0])
            else:
                gone.append(ordinal)
        if gone:
            _LOG.error("delayed messages were removed before they were due", extra={"fields": {"messages": len(gone)}})
            self._finished.add(gone)
        if broken and broken == len(ordinals):
            self._not_before_ms = now_ms + RETRY_MS
        return bool(ordinals)

    def _put_off(self, ordinal: int, error: Exception) -> None:
        """Try again later to read a message."""
        self._times.add(self._now_ms + RETRY_MS, ordinal)
        if times := self._reports.count("read", self._now_ms):
            fields = {"ordinal": ordinal, "times": times}
            _LOG.error("a message that waits for a time cannot be read", exc_info=error, extra={"fields": fields})

    def _deliver(self) -> None:
        self._busy = True
        taken = self._taken

        def moved(outcome: Sequence[MoveReceipt] | Refusal) -> None:
            self._busy, self._taken = False, []
            if isinstance(outcome, Refusal):
                done = self._refused(outcome, taken)
                receipts: Sequence[MoveReceipt] = self._mover.forget(each.origin for each in done)
            else:
                done, receipts = taken, outcome
            self._wake()

            def saved(error: Exception | None) -> None:
                if error is not None:
                    _LOG.error("position of timed messages not saved", extra={"fields": {"reason": error}})
                    return
                for receipt in receipts:
                    receipt.noted()

            self._finished.add([each.ordinal for each in done], saved)

        move_all(self._mover, taken, moved)

    def _refused(self, refusal: Refusal, taken: list[WaitingMessage[M]]) -> list[WaitingMessage[M]]:
        """Put off the messages that were not moved, so that others are not held up; return the moved ones."""
        done = [each for each in taken if self._mover.was_moved(each.origin)]
        for each in taken:
            if not self._mover.was_moved(each.origin):
                self._times.add(self._now_ms + RETRY_MS, each.ordinal)
        if not done:
            self._not_before_ms = self._now_ms + PAUSE_MS
        if times := self._reports.count("deliver", self._now_ms):
            _LOG.warning("timed messages not delivered yet", extra={"fields": {"reason": refusal, "times": times}})
        return done
