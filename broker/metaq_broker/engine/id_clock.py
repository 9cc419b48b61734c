"""The time that goes into message ids, and when the clock is not trusted.

Ids hold the wall clock's milliseconds in 41 bits, and offsets are looked up by them, so one message with a wrong time
spoils its partition: "messages since yesterday" begins where time went ahead, for ever. A wall clock may be wrong for a
moment (a machine that has just booted, a step by hand), so it is compared with the clock that only grows:

* **Never trusted:** a time before ids begin (2011), or behind those that they can hold (2080).
* **A jump**, by more than ``JUMP_MAX_S`` against the growing clock, is trusted when it has lasted for ``SETTLE_S``: an
  error is mostly shorter, a correction stays. The same goes for the first reading, if it is before the time when the
  data was last used, or more than ``IDLE_MAX_S`` behind it.

Until then puts are refused. What was promised before, such as the commit of a prepared transaction, goes on with the
time that would be if the clock had gone on evenly. No id is taken at a time that is not trusted.

Source: docs/operations.md, "When the clock is wrong".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from metaq.formats.message_id import EPOCH_MS, LATEST_MS
from metaq_broker.clock import Clock

_LOG: Final = logging.getLogger(__name__)

JUMP_MAX_S: Final = 600.0
"""A wall clock that steps by less is followed at once."""

SETTLE_S: Final = 60.0
"""A larger step is trusted when the clock has gone on evenly for so long since."""

IDLE_MAX_S: Final = 400 * 86_400.0
"""Data that was not used for longer may as well have met a wrong clock."""


class IdClock:
    """See the module. ``stepped_back`` is called when a step back by more than ``JUMP_MAX_S`` is trusted."""

    def __init__(self, clock: Clock, stepped_back: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._stepped_back = stepped_back
        self._offset_ms: float | None = None  # of the wall clock from the growing one, as it is trusted
        self._doubted: tuple[float, float] | None = None  # another offset, and since when it is there
        self._last_used_ms: int | None = None
        self.fault: str | None = None
        """Why the clock was not trusted when it was last read."""
        self.latest_ms = EPOCH_MS + 1
        """The time for ids when the clocks were last read."""

    def expect(self, last_used_ms: int) -> None:
        """Take note of when the data was last used, before the first reading."""
        self._last_used_ms = last_used_ms

    def time_ms(self) -> int:
        """Read the clocks; return the time for ids. ``fault`` says whether it is the wall clock's."""
        now_ms, grown_s = self._clock.now_ms(), self._clock.since_boot()
        offset_ms = now_ms - grown_s * 1000
        fault = self._fault(now_ms, offset_ms, grown_s)
        if fault is None:
            self._offset_ms, self._doubted = offset_ms, None
        if (fault is None) != (self.fault is None):
            self._report(fault)
        self.fault = fault
        if fault is None:
            self.latest_ms = now_ms
        else:
            self.latest_ms = EPOCH_MS + 1 if self._offset_ms is None else int(self._offset_ms + grown_s * 1000)
        return self.latest_ms

    def is_trusted(self) -> bool:
        """Read the clocks; say whether the wall clock is trusted now."""
        self.time_ms()
        return self.fault is None

    def _fault(self, now_ms: int, offset_ms: float, grown_s: float) -> str | None:
        if not EPOCH_MS < now_ms <= LATEST_MS:
            self._doubted = None
            return f"the clock shows {_words(now_ms)}, message ids hold times from 2011 to 2080"
        expected_ms = self._offset_ms
        if expected_ms is None:
            if self._is_likely_at_first(now_ms):
                return None
        elif abs(offset_ms - expected_ms) <= JUMP_MAX_S * 1000:
            return None
        if self._doubted is None or abs(offset_ms - self._doubted[0]) > JUMP_MAX_S * 1000:
            self._doubted = offset_ms, grown_s
        elif grown_s - self._doubted[1] >= SETTLE_S:
            if expected_ms is not None and offset_ms < expected_ms:
                self._stepped_back()
            return None
        return f"the clock has jumped to {_words(now_ms)}; it is trusted when it has gone on evenly for {SETTLE_S:g} s"

    def _is_likely_at_first(self, now_ms: int) -> bool:
        if self._last_used_ms is None:
            return True
        return -JUMP_MAX_S * 1000 <= now_ms - self._last_used_ms <= IDLE_MAX_S * 1000

    def _report(self, fault: str | None) -> None:
        if fault is None:
            _LOG.warning("puts are accepted again, the clock is trusted")
        else:
            _LOG.error("puts are refused, the clock is wrong", extra={"fields": {"reason": fault}})


def _words(now_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{now_ms} ms since 1970"
