"""How often to try again, and how long to pause before.

Only errors whose ``retryable`` is true are worth it: no connection, no answer in time, and "no thread free" (503). The
count starts over whenever something got through, so a long read survives any number of restarts, while a broker that is
gone is given up after ``retries`` pauses, or where a policy says so after ``wait_s``. A broker that hangs takes the
whole time that a request may take with every try: where a ``TimeLimit`` is given, it ends all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from metaq.errors import MetaqError
from metaq.net.clock import Clock

_T = TypeVar("_T")

PAUSE_S_MAX: Final = 10.0
"""The pause doubles with each failure in a row, up to this."""

_DOUBLINGS_MAX: Final = 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Up to ``retries`` further tries in a row (0 = none); the first after ``retry_interval_s``, then doubling.

    For a server that is away (``MetaqError.away``) tries go on until ``wait_s`` have passed since the first failure.
    """

    retries: int = 5
    retry_interval_s: float = 0.2
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries={self.retries}: expected 0 or more")
        if not 0 < self.retry_interval_s <= PAUSE_S_MAX:
            raise ValueError(
                f"retry_interval_s={self.retry_interval_s}: expected seconds above 0, up to {PAUSE_S_MAX:g}"
            )


DEFAULT_POLICY: Final = RetryPolicy()


class Reconnectable(Protocol):
    """What ``recover`` needs of a session."""

    @property
    def closed(self) -> bool: ...

    def reopen(self) -> None: ...


class TimeLimit:
    """How long all tries may take together: ``within_s`` from now, or from the last time that something got through."""

    def __init__(self, within_s: float, clock: Clock) -> None:
        self._within_s, self._clock = within_s, clock
        self.until_s = 0.0
        """When it ends, on the clock."""
        self.renew()

    @classmethod
    def of(cls, within_s: float | None, clock: Clock) -> TimeLimit | None:
        """Return the limit of ``within_s`` from now; ``None``: there is none."""
        return None if within_s is None else cls(within_s, clock)

    def renew(self) -> None:
        """Begin anew."""
        self.until_s = self._clock.monotonic() + self._within_s

    def half(self) -> TimeLimit:
        """Return a limit of half of what is left: for a try after which there is something else to try."""
        return TimeLimit(self.left_s / 2, self._clock)

    @property
    def left_s(self) -> float:
        """How much is left."""
        return max(0.0, self.until_s - self._clock.monotonic())


class Attempts:
    """Counts failures in a row against a policy; none is tried again when ``limit`` would be over."""

    def __init__(self, policy: RetryPolicy, clock: Clock, limit: TimeLimit | None = None) -> None:
        self._policy, self._clock, self._limit = policy, clock, limit
        self._failures = 0
        self._failing_since_s = 0.0

    def begin(self) -> None:
        """What comes is a first try, unless the last one failed: its time begins."""
        if self._limit is not None and not self._failures:
            self._limit.renew()

    def progressed(self) -> None:
        """Something got through: count from the start again."""
        self._failures = 0
        if self._limit is not None:
            self._limit.renew()

    def pause_after(self, error: MetaqError) -> None:
        """Sleep before the next try; raise ``error`` if it is not worth one, there were enough, or no time is left."""
        if not error.retryable:
            raise error
        if not self._failures:
            self._failing_since_s = self._clock.monotonic()
        if self._failures >= self._policy.retries and not self._waits(error):
            raise error
        pause_s = min(self._policy.retry_interval_s * 2 ** min(self._failures, _DOUBLINGS_MAX), PAUSE_S_MAX)
        if self._limit is not None and self._clock.monotonic() + pause_s >= self._limit.until_s:
            raise error
        self._failures += 1
        self._clock.sleep(pause_s)

    def _waits(self, error: MetaqError) -> bool:
        """Whether ``error`` is about a server that is away, and there is time to wait for it; the log says so once."""
        left_s = self._failing_since_s + self._policy.wait_s - self._clock.monotonic()
        if not error.away or left_s <= 0:
            return False
        if self._failures == self._policy.retries:
            _log.warning("%s. Waiting for it for up to %.0f s", error, left_s)
        return True

    def recover(self, session: Reconnectable, error: MetaqError) -> None:
        """Pause, and connect ``session`` again if the error closed it, as often as the policy allows.

        Raises:
            MetaqError: ``error``, or the last failure to connect.
        """
        while True:
            self.pause_after(error)
            if not session.closed:
                return
            try:
                session.reopen()
            except MetaqError as again:
                error = again
            else:
                return


def persist(ask: Callable[[], _T], policy: RetryPolicy, clock: Clock, limit: TimeLimit | None = None) -> _T:
    """What ``ask`` returns, called again after each failure that is worth it, as often as ``policy`` allows.

    ``ask`` keeps to ``limit`` by itself; it is not called again when that would be over.

    Raises:
        MetaqError: The last failure.
    """
    attempts = Attempts(policy, clock, limit)
    while True:
        try:
            return ask()
        except MetaqError as error:
            attempts.pause_after(error)
