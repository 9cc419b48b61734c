"""Wall-clock times on a line without jumps, and whether the wall clock is reliable enough to delete by age.

A wall clock that has jumped is trusted after a while (``id_clock``), because a correction stays. It may be wrong
nevertheless: for a day (``DOUBT_MS``), or until an operator accepts it, nothing is deleted by age. A clock that returns
to the time without the jump ends the doubt.

Due times of waiting messages are compared on a line on which every second is a second: the wall clock's time minus all
jumps. The time between two jumps is an *epoch*. A recorded time, such as the store time of a message, belongs to the
epoch in which the clock showed it; if there are several, to the latest, so that no message is due too early.

The jumps are stored in the file ``clock-jumps`` in the data folder, UTF-8 text, replaced atomically at each jump::

    metaq-clock-jumps 1
    doubt UNTIL                      in ms on the line without jumps; ``-``: the clock is not in doubt
    jump AT BEFORE AFTER             in ms: when, on the line without jumps; what the clock showed before and after it
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

Jumps that are older than ``KEPT_MS`` are dropped at a start: no message waits for so long. Without the file, or with a
damaged one, the clock has not jumped.

Source: docs/operations.md, "When the clock is wrong".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal

_LOG: Final = logging.getLogger(__name__)

FILE_NAME: Final = "clock-jumps"
_TITLE: Final = "metaq-clock-jumps 1"

DAY_MS: Final = 86_400_000
DOUBT_MS: Final = DAY_MS
"""How long after an accepted jump nothing is deleted by age, unless an operator accepts the clock."""

KEPT_MS: Final = 7 * DAY_MS
"""Longer than any message waits."""

SAME_MS: Final = 600_000
"""A clock this near to its time without jumps counts as not having jumped."""


class Jump(NamedTuple):
    """At ``at_ms``, on the line without jumps, the clock went from ``before_ms`` to ``after_ms``."""

    at_ms: int
    before_ms: int
    after_ms: int


class SteadyTime:
    """``changed`` is called when the file should be written again."""

    def __init__(
        self, jumps: Sequence[Jump] = (), doubt_until_ms: int | None = None, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._jumps, self._doubt_until_ms = list(jumps), doubt_until_ms
        self.changed = changed
        self.shown_ms = 0

    @classmethod
    def read(cls, files: Files, folder: Path) -> SteadyTime:
        """Read the file in ``folder`` (blocking).

        Raises:
            OSError: The file exists and cannot be read.
        """
        path = folder / FILE_NAME
        if not files.exists(path):
            return cls()
        try:
            first, *lines = unseal(_TITLE, files.read_bytes(path))
            until = first.removeprefix("doubt ")
            jumps = [Jump(*map(int, line.removeprefix("jump ").split())) for line in lines]
            return cls(jumps, None if until == "-" else int(until))
        except (ValueError, TypeError) as error:
            _LOG.warning("file of clock jumps is not used", extra={"fields": {"path": path, "reason": error}})
            return cls()

    def content(self) -> bytes:
        until = "-" if self._doubt_until_ms is None else str(self._doubt_until_ms)
        return seal(_TITLE, [f"doubt {until}", *("jump {} {} {}".format(*jump) for jump in self._jumps)])

    @property
    def shift_ms(self) -> int:
        """How far the wall clock is ahead of the line without jumps."""
        return sum(jump.after_ms - jump.before_ms for jump in self._jumps)

    def shifts_ms(self) -> list[int]:
        """Return how far the wall clock was ahead in each epoch, the latest first."""
        shifts = [0]
        for jump in self._jumps:
            shifts.append(shifts[-1] + jump.after_ms - jump.before_ms)
        return shifts[::-1]

    def of(self, wall_ms: int) -> int:
        """Convert a time that this broker's clock has shown to the line without jumps."""
        if not self._jumps:
            return wall_ms
        ends = [*(jump.before_ms for jump in self._jumps), max(self.shown_ms, self._jumps[-1].after_ms)]
        begins = [min(wall_ms, ends[0]), *(jump.after_ms for jump in self._jumps)]
        distances = [max(begin - wall_ms, wall_ms - end, 0) for begin, end in zip(begins, ends, strict=True)][::-1]
        return wall_ms - self.shifts_ms()[distances.index(min(distances))]

    def jumped(self, before_ms: int, after_ms: int) -> None:
        """Record an accepted jump: the clock shows ``after_ms`` instead of ``before_ms``."""
        at_ms = before_ms - self.shift_ms
        self._jumps.append(Jump(at_ms, before_ms, after_ms))
        self._doubt_until_ms = None if abs(self.shift_ms) <= SAME_MS else at_ms + DOUBT_MS
        self.changed()

    def doubt(self, now_ms: int) -> None:
        """Doubt the clock for a while although no jump was seen; ``now_ms`` is on the line without jumps."""
        self._doubt_until_ms = now_ms + DOUBT_MS
        self.changed()

    def is_doubted(self, now_ms: int) -> bool:
        """Return whether the last jump is too recent to delete by age; ``now_ms`` is on the line without jumps."""
        return self._doubt_until_ms is not None and now_ms < self._doubt_until_ms

    def end_doubt(self) -> bool:
        """End the doubt; return whether there was one."""
        was, self._doubt_until_ms = self._doubt_until_ms is not None, None
        if was:
            self.changed()
        return was

    def forget_old(self, now_ms: int) -> None:
        """Drop jumps that no waiting message needs; ``now_ms`` is on the line without jumps."""
        kept = [jump for jump in self._jumps if now_ms - jump.at_ms < KEPT_MS]
        if len(kept) < len(self._jumps) and not kept:
            self._jumps = []
            self.changed()
