"""The time for message ids, and when the clock is not trusted.

Ids hold the wall clock's milliseconds in 41 bits, and offsets are looked up by them, so one message with a wrong time
spoils its partition: a search for "messages since yesterday" would permanently begin at that message. A wall clock may
be wrong for a moment (just after a boot, or after a manual change), so it is compared with the monotonic clock:

* **Never trusted:** a time before ids begin (2011), or beyond their range (2080).
* **A jump**, by more than ``JUMP_MAX_S`` against the monotonic clock, is trusted when it has lasted for ``SETTLE_S``:
  an error is mostly shorter, a correction stays. The same goes for the first reading, if it is before the time when the
  data was last used, or more than ``IDLE_MAX_S`` after it.

Until then puts are refused. Earlier promises, such as the commit of a prepared transaction, use the time that the clock
would show without the jump. No id has a time that is not trusted. For a day after an accepted jump the clock is in
doubt (``steady_time``): nothing is deleted by age.

Source: docs/operations.md, "When the clock is wrong".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from metaq.formats.message_id import EPOCH_MS, LATEST_MS
from metaq_broker.clock import Clock
from metaq_broker.log.engine.steady_time import DAY_MS, SteadyTime

_LOG: Final = logging.getLogger(__name__)

JUMP_MAX_S: Final = 600.0
"""Smaller steps of the wall clock are followed at once."""

SETTLE_S: Final = 60.0
"""A larger step is trusted when the clock has run evenly for this long since."""

IDLE_MAX_S: Final = 400 * 86_400.0
"""After a longer time without use of the data, the first reading is compared like a jump."""


REST_MAX_MS: Final = 2 * DAY_MS
"""After a longer time without use of the data, the clock is in doubt: it may have jumped unnoticed."""


class IdClock:
    def __init__(self, clock: Clock, stepped_back: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._stepped_back = stepped_back
        self._offset_ms: float | None = None  # of the wall clock from the monotonic one, as trusted
        self._doubted: tuple[float, float] | None = None  # another offset, and since when
        self._last_used_ms: int | None = None
        self._began_s: float | None = None
        self.steady = SteadyTime()
        """The accepted jumps."""
        self._doubt: str | None = None
        self.fault: str | None = None
        """Why the clock was not trusted at the last reading."""
        self.latest_ms = EPOCH_MS + 1
        """The time for ids at the last reading."""

    def expect(self, last_used_ms: int) -> None:
        """Set when the data was last used, by the clock of that time; before the first reading."""
        self._last_used_ms = self.steady.of(last_used_ms)

    def time_ms(self) -> int:
        """Read the clocks; return the time for ids. ``fault`` says why it is not the wall clock's."""
        now_ms, grown_s = self._clock.now_ms(), self._clock.since_boot()
        self._began_s = grown_s if self._began_s is None else self._began_s
        offset_ms = now_ms - grown_s * 1000
        even_ms = self._offset_ms
        is_even = even_ms is not None and abs(offset_ms - even_ms) <= JUMP_MAX_S * 1000
        fault = None if is_even and EPOCH_MS < now_ms <= LATEST_MS else self._fault(now_ms, offset_ms, grown_s)
        if fault is None:
            self._offset_ms, self._doubted = offset_ms, None
        if (fault is None) != (self.fault is None):
            self._report(fault)
        self.fault = fault
        if fault is None:
            self.latest_ms = now_ms
        else:
            self.latest_ms = EPOCH_MS + 1 if self._offset_ms is None else int(self._offset_ms + grown_s * 1000)
        self.steady.shown_ms = self.latest_ms
        return self.latest_ms

    def is_trusted(self) -> bool:
        """Read the clocks; return whether the wall clock is trusted now."""
        self.time_ms()
        return self.fault is None

    def steady_ms(self) -> int:
        """Read the clocks; return the time on the line without jumps (``steady_time``)."""
        now_ms = self.time_ms()
        if self.fault is not None and self._offset_ms is None:
            return EPOCH_MS + 1 if self._last_used_ms is None else self._last_used_ms + self._grown_ms()
        return now_ms - self.steady.shift_ms

    def is_ahead(self, wall_ms: int) -> bool:
        """Read the clocks; return whether a time is ahead of what this broker's clock should show by a small step."""
        now_ms = self.steady_ms() + self.steady.shift_ms
        return 0 <= wall_ms - now_ms <= JUMP_MAX_S * 1000

    def _grown_ms(self) -> int:
        return int((self._clock.since_boot() - (self._began_s or 0.0)) * 1000)

    def doubt(self) -> str | None:
        """Read the clocks; return why nothing may be deleted by age now; ``None`` if the clock is not in doubt."""
        now_ms = self.steady_ms()
        doubt = self.fault
        if doubt is None and self.steady.is_doubted(now_ms):
            doubt = f"the clock shows {_words(self._clock.now_ms())} since a jump, or the broker rested for long"
        elif doubt is None:
            self.steady.end_doubt()
        if (doubt is None) != (self._doubt is None):
            self._report_doubt(doubt)
        self._doubt = doubt
        return doubt

    def accept(self) -> bool:
        """Accept the wall clock from now on, for an operator; return whether that ended a doubt.

        It does not if the clock shows a time that message ids cannot hold.
        """
        self.time_ms()
        if self.fault is not None:
            now_ms, grown_s = self._clock.now_ms(), self._clock.since_boot()
            if not EPOCH_MS < now_ms <= LATEST_MS:
                return False
            self._trust_jump(now_ms, now_ms - grown_s * 1000, grown_s)
            self._offset_ms, self._doubted, self.latest_ms = now_ms - grown_s * 1000, None, now_ms
            self.fault = None
            self._report(None)
            self.steady.end_doubt()
            accepted = True
        else:
            accepted = self.steady.end_doubt()
        self.doubt()
        return accepted

    def _trust_jump(self, now_ms: int, offset_ms: float, grown_s: float) -> None:
        if self._offset_ms is not None:
            even_ms = int(self._offset_ms + grown_s * 1000)
        else:
            last_used_ms = now_ms if self._last_used_ms is None else self._last_used_ms + self.steady.shift_ms
            even_ms = last_used_ms + self._grown_ms()
        if now_ms < even_ms:
            self._stepped_back()
        self.steady.jumped(even_ms, now_ms)

    def _fault(self, now_ms: int, offset_ms: float, grown_s: float) -> str | None:
        """Return why a clock that has not gone on evenly is not trusted; ``None`` if it is."""
        if not EPOCH_MS < now_ms <= LATEST_MS:
            self._doubted = None
            return f"the clock shows {_words(now_ms)}, message ids hold times from 2011 to 2080"
        if self._offset_ms is None and self._begins_likely(now_ms):
            return None
        if self._doubted is None or abs(offset_ms - self._doubted[0]) > JUMP_MAX_S * 1000:
            self._doubted = offset_ms, grown_s
        elif grown_s - self._doubted[1] >= SETTLE_S:
            self._trust_jump(now_ms, offset_ms, grown_s)
            return None
        return f"the clock has jumped to {_words(now_ms)}; it is trusted when it has gone on evenly for {SETTLE_S:g} s"

    def _begins_likely(self, now_ms: int) -> bool:
        """Compare the first reading with the last use; meanwhile the clock may have returned from a jump."""
        if self._last_used_ms is None:
            return True
        shift_ms = self.steady.shift_ms
        for each_ms in self.steady.shifts_ms():
            rested_ms = now_ms - each_ms - self._last_used_ms
            if -JUMP_MAX_S * 1000 <= rested_ms <= IDLE_MAX_S * 1000:
                if each_ms != shift_ms:
                    self.steady.jumped(now_ms - each_ms + shift_ms, now_ms)
                self.steady.forget_old(now_ms - each_ms)
                if rested_ms > REST_MAX_MS:
                    self.steady.doubt(now_ms - each_ms)
                return True
        return False

    def _report_doubt(self, doubt: str | None) -> None:
        if doubt is None:
            _LOG.warning("messages are deleted by age again, the clock is sure")
        else:
            _LOG.warning("nothing is deleted by age, the clock is not sure", extra={"fields": {"reason": doubt}})

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
