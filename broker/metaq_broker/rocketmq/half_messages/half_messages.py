"""Half messages: a commit delivers each once, a rollback never, and a silent producer is asked.

A commit moves the message (``moves``) and then appends a note that it is ended. A kill between the two leaves a moved
message without a note: after the restart it is found in its queue, and the note is written. After an earlier kill the
producer is asked again. So a decision may be repeated, but takes effect once. A decision that the disk refuses is kept,
and retried every ``RETRY_MS``; its producer is not asked meanwhile.

::

    decide(commit)    move ── durable ──▶ note "ended" ── durable ──▶ forgotten
    decide(rollback)                      note "ended" ── durable ──▶ forgotten
    run               every ``interval_ms``: those older than ``patience_ms`` are asked about, with a note "asked";
                      after ``asks_max`` times they are moved to where they are given up, and ended

Simultaneous notes share one append. Used on the event loop. Source: docs/rocketmq-broker.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.rocketmq.half_messages.half_log import (
    ASKED,
    ENDED,
    ORDINALS_MAX,
    GroupWrong,
    HalfEnded,
    HalfKept,
    HalfLog,
    HalfMessageDecided,
    HalfUnknown,
    OriginWrong,
    StoredHalf,
    note_body,
)
from metaq_broker.rocketmq.half_messages.ledger import HALF_MESSAGES_MAX, Half, Ledger, RestartOrdinals
from metaq_broker.rocketmq.moves.log import MoveTable, Queue, save
from metaq_broker.rocketmq.moves.mover import Mover, MoveReceipt

_LOG: Final = logging.getLogger(__name__)

M = TypeVar("M")
KEY: Final = "half/positions"
READ_MESSAGES: Final = 128
ASK_AT_ONCE: Final = 64
"""Limit on half messages that one ``run`` asks about, which takes some milliseconds of the event loop."""
EARLY_MAX: Final = 10_000
"""Limit on decisions that wait until the half messages are read after a restart. Beyond it, producers are asked."""
PASSES_MS: Final = 50
RETRY_MS: Final = 1_000

Done = Callable[[HalfMessageDecided | Refusal], None]


@dataclass(frozen=True, slots=True)
class AskPolicy:
    """When producers are asked, and how often."""

    patience_ms: int = 6_000
    interval_ms: int = 60_000
    asks_max: int = 15
    open_max: int = HALF_MESSAGES_MAX


class _Early(NamedTuple):
    ordinal: int
    origin: int
    group: str
    commit: bool
    done: Done


class _Pending(NamedTuple):
    """An end without a durable note."""

    half: Half
    receipts: Sequence[MoveReceipt]
    noted: Callable[[Refusal | None], None]


class HalfMessages(Generic[M]):
    """Ends half messages and asks producers; ``run`` and ``wake`` as in ``LevelQueues``."""

    def __init__(
        self,
        log: HalfLog[M],
        mover: Mover[M],
        state: MoveTable,
        wake: Callable[[], None],
        policy: AskPolicy | None = None,
    ) -> None:
        self.policy = AskPolicy() if policy is None else policy
        self.recovered = self._checked = False
        self._readable = True
        self._log, self._mover, self._state, self._wake = log, mover, state, wake
        self._begin_at(read_positions(state.get(KEY)))
        self._hold: MoveReceipt | None = mover.hold()
        self._early: list[_Early] = []
        self._pending: list[_Pending] = []
        self._noting = False
        self._refused: dict[int, tuple[Half, bool]] = {}
        self._retry_ms = 0
        self._to_ask: deque[Half] = deque()
        self._next_run_ms: int | None = None
        self._check()  # before new half messages arrive, which must not count as ended

    def __len__(self) -> int:
        return len(self._ledger)

    def _begin_at(self, positions: RestartOrdinals) -> None:
        self._ledger, self._read_from = Ledger(positions), positions

    def positions(self) -> RestartOrdinals:
        """Return the ordinals from which a restart would read half messages and notes."""
        return self._ledger.positions() if self.recovered else self._read_from

    @property
    def is_full(self) -> bool:
        """Whether no more half messages may be stored now."""
        not_read = self._log.ends()[0] - self._ledger.next_half
        return len(self._ledger) + not_read >= self.policy.open_max

    def stored(self, half: Half) -> None:
        """A half message was stored. Unreported ones are read when they are needed."""
        if self.recovered and half.ordinal == self._ledger.next_half:
            self._ledger.add(half)

    # ---- deciding

    def decide(self, ordinal: int, origin: int, group: str, commit: bool, done: Done) -> None:
        """Commit or roll back; ``done`` is called once, when that is durable, with ``HalfKept`` if it will be later, or
        with the reason why nothing is done.
        """
        if not self.recovered:
            if len(self._early) < EARLY_MAX:
                self._early.append(_Early(ordinal, origin, group, commit, done))
            else:
                done(HalfUnknown(ordinal))
            return
        half = self._ledger.get(ordinal) or self._read_up_to(ordinal)
        refusal = self._refusal(half, ordinal, origin, group)
        if refusal is not None or half is None:
            done(refusal or HalfUnknown(ordinal))
            return
        self._carry_out(half, commit, done)

    def refusal(self, ordinal: int, origin: int, group: str) -> Refusal | None:
        """Return why ``decide`` would do nothing; ``None`` if it would end the half message."""
        if not self.recovered:
            return HalfUnknown(ordinal)
        return self._refusal(self._ledger.get(ordinal) or self._read_up_to(ordinal), ordinal, origin, group)

    def _carry_out(self, half: Half, commit: bool, done: Done) -> None:
        half.deciding = True
        self._refused.pop(half.ordinal, None)

        def ended(failed: Refusal | None) -> None:
            if failed is not None and not isinstance(failed, HalfUnknown):
                self._refused[half.ordinal] = half, commit
                self._wake()
                failed = HalfKept(commit, failed)
            done(failed or HalfMessageDecided(commit))

        if commit:
            self._commit(half, ended)
        else:
            self._end(half, (), ended)

    def _refusal(self, half: Half | None, ordinal: int, origin: int, group: str) -> Refusal | None:
        if half is None:
            return HalfEnded(ordinal) if self._ledger.is_ended(ordinal) else HalfUnknown(ordinal)
        if half.origin != origin:
            return OriginWrong(half.origin)
        if half.group != group:
            return GroupWrong(half.group)
        return HalfEnded(ordinal) if half.deciding else None

    def _commit(self, half: Half, done: Callable[[Refusal | None], None]) -> None:
        stored = self._stored(half)
        if isinstance(stored, Refusal):
            half.deciding = False
            done(stored)
        elif stored.target is None:
            half.deciding = False
            done(HalfUnknown(half.ordinal))
        else:
            self._move(half, stored.target, stored.message, done)

    def _move(self, half: Half, queue: Queue, message: M, done: Callable[[Refusal | None], None]) -> None:
        if self._mover.was_moved(half.origin):
            self._end(half, self._mover.forget([half.origin]), done)
            return

        def moved(outcome: MoveReceipt | Refusal) -> None:
            if isinstance(outcome, Refusal):
                half.deciding = False
                done(outcome)
                return
            done(None)  # delivered, even if the note fails
            self._end(half, (outcome,), lambda failed: None)

        self._mover.move(queue, [message], moved)

    # ---- notes

    def _end(self, half: Half, receipts: Sequence[MoveReceipt], noted: Callable[[Refusal | None], None]) -> None:
        self._pending.append(_Pending(half, receipts, noted))
        self._wake()

    def _write_notes(self) -> None:
        if self._noting or not self._pending:
            return
        self._noting = True
        pending, self._pending = self._pending[:ORDINALS_MAX], self._pending[ORDINALS_MAX:]

        def stored(note: int | Refusal) -> None:
            self._noting = False
            if isinstance(note, Refusal):
                self._note_refused(pending, note)
                return
            for each in pending:
                self._ledger.noted(each.half.ordinal, note, ended=True)
                for receipt in each.receipts:
                    receipt.noted()
                each.noted(None)
            self._save()
            self._wake()

        self._log.append_note(ENDED, note_body([each.half.ordinal for each in pending]), stored)

    def _note_refused(self, pending: Sequence[_Pending], refusal: Refusal) -> None:
        _LOG.warning("the end of half messages is not recorded yet", extra={"fields": {"reason": refusal}})
        for each in pending:
            if each.receipts:
                self._pending.append(each)  # delivered already: noted as soon as the disk lets us
            else:
                each.half.deciding = False
                each.noted(refusal)

    def _save(self) -> None:
        value = b"%d,%d" % self._ledger.positions()
        if value != self._state.get(KEY):
            save(self._state, KEY, value)

    # ---- reading

    def _stored(self, half: Half) -> StoredHalf[M] | Refusal:
        read = self._log.halves(half.ordinal, 1)
        if isinstance(read, Refusal):
            return read
        found = [each for each in read[0] if each.ordinal == half.ordinal]
        return found[0] if found else HalfUnknown(half.ordinal)

    def _read_up_to(self, ordinal: int) -> Half | None:
        """Read half messages that were stored meanwhile; return the requested one, if it is open."""
        while self._ledger.next_half <= ordinal < self._log.ends()[0] and self._read_halves():
            pass
        return self._ledger.get(ordinal)

    def _read_halves(self) -> bool:
        first = self._ledger.next_half
        read = self._log.halves(first, READ_MESSAGES)
        if isinstance(read, Refusal):
            _LOG.error("half messages cannot be read", extra={"fields": {"reason": read}})
            return False
        for each in read[0]:
            self._ledger.add(Half(each.ordinal, each.origin, each.group, each.stored_ms, each.patience_ms))
        self._ledger.next_half = max(self._ledger.next_half, read[1])
        return self._ledger.next_half > first

    def _check(self) -> bool:
        """Reset positions beyond the ends of the topics, which belong to a newer copy of the log, to the ends.

        In a renumbered topic, begin at its start, because the positions' messages are unknown. Return whether the
        topics could be read.
        """
        refusal, (half_end, notes_end) = self._log.fault(), self._log.ends()
        self._readable = refusal is None
        if refusal is not None:
            _LOG.error("half messages cannot be read", extra={"fields": {"reason": refusal}})
            return False
        positions = RestartOrdinals(self._ledger.next_half, self._ledger.next_note)
        half_first, notes_first = self._log.renumbered()
        if half_first is not None or notes_first is not None:
            fields = {"positions": positions, "firsts": (half_first, notes_first)}
            _LOG.warning("half messages: a topic was renumbered; producers are asked", extra={"fields": fields})
            positions = RestartOrdinals(
                positions.half if half_first is None else half_first,
                positions.notes if notes_first is None else notes_first,
            )
            self._begin_at(positions)
        if positions.half > half_end or positions.notes > notes_end:
            fields = {"positions": positions, "ends": (half_end, notes_end)}
            _LOG.warning("half messages: the positions are beyond the ends of their topics", extra={"fields": fields})
            self._begin_at(RestartOrdinals(min(positions.half, half_end), min(positions.notes, notes_end)))
        self._checked = True
        return True

    def _recover(self) -> bool:
        """Read a part of the messages stored before the start; return whether all are read."""
        half_end, notes_end = self._log.ends()
        if not self._checked and not self._check():
            return False
        if self._ledger.next_note < notes_end:
            first = self._ledger.next_note
            notes = self._log.notes(first)
            self._readable = not isinstance(notes, Refusal)
            if isinstance(notes, Refusal):
                _LOG.error("notes about half messages cannot be read", extra={"fields": {"reason": notes}})
                return False
            for note in notes[0]:
                for ordinal in note.ordinals:
                    self._ledger.noted(ordinal, note.ordinal, ended=note.kind == ENDED)
            self._ledger.next_note = max(first, notes[1]) if notes[1] > first else notes_end
            return False
        if self._ledger.next_half < half_end:
            self._readable = self._read_halves()
            return False
        moved = [half for half in self._ledger if self._mover.was_moved(half.origin)]
        for half in moved:
            half.deciding = True
            self._end(half, self._mover.forget([half.origin]), lambda failed: None)
        return True

    # ---- as time passes

    def run(self, now_ms: int) -> int:
        """Ask about old half messages, and write notes; return when to call again."""
        if not self.recovered:
            if not self._recover():
                return now_ms if self._readable else now_ms + RETRY_MS
            self.recovered = True
            early, self._early = self._early, []
            for each in early:
                self.decide(*each)
        self._retry(now_ms)
        self._write_notes()
        if self._hold is not None and not self._pending and not self._noting:
            self._hold.noted()
            self._hold = None
        next_ms = self._ask(now_ms)
        return min(next_ms, now_ms + RETRY_MS) if self._pending or self._refused else next_ms

    def _retry(self, now_ms: int) -> None:
        """Retry the decisions that the disk has refused."""
        if now_ms < self._retry_ms <= now_ms + RETRY_MS:
            return
        self._retry_ms = now_ms + RETRY_MS
        for half, commit in list(self._refused.values()):
            if self._ledger.get(half.ordinal) is half and not half.deciding:
                self._carry_out(half, commit, lambda outcome: None)
            else:
                self._refused.pop(half.ordinal, None)

    def _ask(self, now_ms: int) -> int:
        interval_ms = self.policy.interval_ms
        if self._next_run_ms is None or self._next_run_ms > now_ms + interval_ms:
            self._next_run_ms = now_ms + interval_ms
        if not self._to_ask:
            if now_ms < self._next_run_ms:
                return self._next_run_ms
            self._next_run_ms = now_ms + interval_ms
            self._read_up_to(self._log.ends()[0] - 1)
            self._to_ask.extend(self._ledger.to_ask(now_ms, self.policy.patience_ms))
        asked = []
        for _ in range(min(len(self._to_ask), ASK_AT_ONCE)):
            half = self._to_ask.popleft()
            if not half.deciding and self._ask_one(half):
                asked.append(half)
        if asked:
            self._note_asked(asked)
        return now_ms + PASSES_MS if self._to_ask else self._next_run_ms

    def _ask_one(self, half: Half) -> bool:
        """Ask about a half message, or give it up; return whether it counts as asked."""
        if self._ledger.get(half.ordinal) is not half or half.ordinal in self._refused:
            return False
        stored = self._stored(half)
        if isinstance(stored, HalfUnknown):
            _LOG.error("a half message was removed before its end", extra={"fields": {"ordinal": half.ordinal}})
            half.deciding = True
            self._end(half, (), lambda failed: None)
            return False
        if isinstance(stored, Refusal):
            return False
        if half.asked < self.policy.asks_max:
            half.asked += 1
            self._log.ask(stored, half.asked)
            return True
        _LOG.warning("a half message is given up", extra={"fields": {"group": half.group, "ordinal": half.ordinal}})
        half.deciding = True
        self._move(half, stored.given_up_to, stored.given_up, lambda failed: None)
        return False

    def _note_asked(self, halves: Sequence[Half]) -> None:
        def stored(note: int | Refusal) -> None:
            if isinstance(note, Refusal):
                _LOG.warning(
                    "half messages: that they were asked about is not noted", extra={"fields": {"reason": note}}
                )
                return
            for half in halves:
                self._ledger.noted(half.ordinal, note, ended=False)

        self._log.append_note(ASKED, note_body([half.ordinal for half in halves]), stored)


def read_positions(value: bytes | None) -> RestartOrdinals:
    if value is None:
        return RestartOrdinals(0, 0)
    half, _, notes = value.partition(b",")
    return RestartOrdinals(int(half), int(notes))
