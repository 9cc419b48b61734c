"""The open half messages, when to ask their producers, and from where a restart must read. No I/O.

::

    open ──decide──▶ deciding ──ended──▶ (forgotten)
     ▲                  │
     └──────────────────┘   the decision could not be stored

A half message that was added and is not open has ended. A half message may stay open for days, and others after it
end meanwhile: the first notes about these are remembered, for blocks of ordinals. So are the first notes about open
half messages. Both determine ``positions``, from which a restart reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

HALF_MESSAGES_MAX: Final = 100_000

BLOCK: Final = 1024
"""Ordinals of ended half messages that share one first note."""


@dataclass(slots=True, eq=False)
class Half:
    """A half message: ``origin`` is its position, ``group`` may decide, ``patience_ms`` if it has its own."""

    ordinal: int
    origin: int
    group: str
    stored_ms: int
    patience_ms: int | None = None
    asked: int = 0
    deciding: bool = False
    first_note: int | None = None


class RestartOrdinals(NamedTuple):
    """Ordinals from which a restart reads: of half messages and of notes."""

    half: int
    notes: int


class Ledger:
    """Ordinals are added in ascending order."""

    def __init__(self, positions: RestartOrdinals) -> None:
        self.next_half, self.next_note = positions
        self._open: dict[int, Half] = {}
        self._ended: dict[int, int] = {}  # block -> the first note about its ended ones
        self._early: dict[int, tuple[bool, int, int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Half]:
        return iter(list(self._open.values()))

    def get(self, ordinal: int) -> Half | None:
        """Return an open half message, also while it is being decided."""
        return self._open.get(ordinal)

    def is_ended(self, ordinal: int) -> bool:
        """Return whether a half message existed and is ended."""
        return ordinal < self.next_half and ordinal not in self._open

    def add(self, half: Half) -> None:
        """Add a half message. Notes about it may be known already."""
        if half.ordinal < self.next_half:
            return
        self.next_half = half.ordinal + 1
        ended, asked, first_note = self._early.pop(half.ordinal, (False, 0, 0))
        if ended:
            self._end(half.ordinal, first_note)
            return
        if asked:
            half.asked, half.first_note = asked, first_note
        self._open[half.ordinal] = half

    def noted(self, ordinal: int, note: int, *, ended: bool) -> None:
        """Apply note number ``note`` to a half message, which may not be read yet."""
        self.next_note = max(self.next_note, note + 1)
        half = self._open.get(ordinal)
        if half is None:
            if ordinal >= self.next_half:
                was, asked, first = self._early.get(ordinal, (False, 0, note))
                self._early[ordinal] = (was or ended, asked + (not ended), first)
        elif ended:
            del self._open[ordinal]
            self._end(ordinal, note if half.first_note is None else min(half.first_note, note))
        elif half.first_note is None:
            half.first_note = note

    def _end(self, ordinal: int, note: int) -> None:
        self._ended[ordinal // BLOCK] = min(note, self._ended.get(ordinal // BLOCK, note))

    def positions(self) -> RestartOrdinals:
        """Return the ordinals from which a restart must read; a little more than it must, of notes."""
        low = min(self._open, default=self.next_half)
        kept_from = low // BLOCK if self._open else low // BLOCK + 1
        for block in [each for each in self._ended if each < kept_from]:
            del self._ended[block]
        first = [half.first_note for half in self._open.values() if half.first_note is not None]
        return RestartOrdinals(low, min([*first, *self._ended.values(), self.next_note]))

    def to_ask(self, now_ms: int, patience_ms: int) -> list[Half]:
        """Return the open half messages that have waited long enough, and are not being decided."""
        return [half for half in self._open.values() if not half.deciding and _waited(half, now_ms, patience_ms)]


def _waited(half: Half, now_ms: int, patience_ms: int) -> bool:
    half.stored_ms = min(half.stored_ms, now_ms)  # the clock is behind: do not wait until it has caught up
    return now_ms - half.stored_ms >= (patience_ms if half.patience_ms is None else half.patience_ms)
