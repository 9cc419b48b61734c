"""Retries: how many, and the pauses before them.

Only errors with ``retryable`` are retried: no connection, no answer in time, and "no thread free" (503). The count
restarts after each success, so a long read survives any number of restarts, while a stopped broker is given up after
``retries`` pauses, or after the policy's ``wait_s``. With a frozen broker every try takes the full timeout of a
request: a ``TimeLimit`` bounds all of them together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from metaq.errors import MetaqError
from metaq.net.clock import Clock
from metaq.net.transport import Timeouts

_T = TypeVar("_T")

PAUSE_S_MAX: Final = 10.0
"""The pause doubles with each failure in a row, up to this."""

_DOUBLINGS_MAX: Final = 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Up to ``retries`` retries in a row (0 = none); the first after ``retry_interval_s``, then doubling.

    For a server that is away (``MetaqError.away``), retries continue until ``wait_s`` after its first failure; for a
    broker without a master (``MetaqError.electing``) until ``election_s``, if that is longer. Each address is waited
    for so long: a server that is restarted does not use up the time of the next one. No pause is longer than
    ``pause_s_max``.
    """

    retries: int = 5
    retry_interval_s: float = 0.2
    wait_s: float = 0.0
    pause_s_max: float = PAUSE_S_MAX
    election_s: float = 0.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries={self.retries}: expected 0 or more")
        if not 0 < self.retry_interval_s <= PAUSE_S_MAX:
            raise ValueError(
                f"retry_interval_s={self.retry_interval_s}: expected seconds above 0, up to {PAUSE_S_MAX:g}"
            )


DEFAULT_POLICY: Final = RetryPolicy()
ONCE: Final = RetryPolicy(0)


ELECTION_PAUSE_S: Final = 0.1
ELECTION_PAUSE_S_MAX: Final = 0.4
"""First and longest pause between two attempts to find the new master of a pair."""


def election_policy(timeouts: Timeouts) -> RetryPolicy:
    """Return the retries of questions about the cluster: they wait for a broker without a master, and only for that."""
    return RetryPolicy(0, ELECTION_PAUSE_S, pause_s_max=ELECTION_PAUSE_S_MAX, election_s=timeouts.request_s)


class Reconnectable(Protocol):
    """What ``recover`` needs of a session."""

    @property
    def closed(self) -> bool: ...

    def reopen(self) -> None: ...


class TimeLimit:
    """Time limit of all tries together: ``within_s`` from now, or from the last success."""

    def __init__(self, within_s: float, clock: Clock) -> None:
        self._within_s, self._clock = within_s, clock
        self.until_s = 0.0
        """When the limit is reached, on the clock."""
        self.renew()

    @classmethod
    def of(cls, within_s: float | None, clock: Clock) -> TimeLimit | None:
        """Return a limit of ``within_s`` from now; ``None`` for ``None``."""
        return None if within_s is None else cls(within_s, clock)

    def renew(self) -> None:
        """Restart the limit from now."""
        self.until_s = self._clock.monotonic() + self._within_s

    def half(self) -> TimeLimit:
        """Return a limit of half of the remaining time, for a try that has an alternative."""
        return TimeLimit(self.left_s / 2, self._clock)

    @property
    def left_s(self) -> float:
        """The remaining seconds."""
        return max(0.0, self.until_s - self._clock.monotonic())


class Attempts:
    """Counts consecutive failures against a policy; no retry begins after ``limit``."""

    def __init__(self, policy: RetryPolicy, clock: Clock, limit: TimeLimit | None = None) -> None:
        self._policy, self._clock, self._limit = policy, clock, limit
        self._failures = 0
        self._failing_since_s: dict[str | None, float] = {}  # by address

    def begin(self) -> None:
        """Begin the time limit, unless the next try is a retry."""
        if self._limit is not None and not self._failures:
            self._limit.renew()

    def progressed(self) -> None:
        """Reset the count after a success."""
        self._failures = 0
        self._failing_since_s.clear()
        if self._limit is not None:
            self._limit.renew()

    def pause_after(self, error: MetaqError) -> None:
        """Sleep before the next try; raise ``error`` if it is not retryable or the limits are reached."""
        if not error.retryable:
            raise error
        now_s = self._clock.monotonic()
        away_s = now_s - self._failing_since_s.setdefault(getattr(error, "address", None), now_s)
        if self._failures >= self._policy.retries and not self._waits(error, away_s):
            raise error
        pause_s = min(
            self._policy.retry_interval_s * 2 ** min(self._failures, _DOUBLINGS_MAX), self._policy.pause_s_max
        )
        if self._limit is not None and self._clock.monotonic() + pause_s >= self._limit.until_s:
            raise error
        self._failures += 1
        self._clock.sleep(pause_s)

    def _waits(self, error: MetaqError, away_s: float) -> bool:
        """Whether to wait for a server that has been away for ``away_s``; logged once for each."""
        wait_s = max(self._policy.wait_s, self._policy.election_s) if error.electing else self._policy.wait_s
        left_s = wait_s - away_s
        if not error.away or left_s <= 0:
            return False
        if self._failures == self._policy.retries or not away_s:
            _log.warning("%s. Waiting for up to %.0f s", error, left_s)
        return True

    def recover(self, session: Reconnectable, error: MetaqError) -> None:
        """Pause, and reconnect ``session`` if the error closed it, as often as the policy allows.

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
    """Return the result of ``ask``, called again after each retryable failure, as often as ``policy`` allows.

    ``ask`` must respect ``limit`` itself; it is not called again after it.

    Raises:
        MetaqError: The last failure.
    """
    attempts = Attempts(policy, clock, limit)
    while True:
        try:
            return ask()
        except MetaqError as error:
            attempts.pause_after(error)


def persist_over(session: Reconnectable, ask: Callable[[], _T], policy: RetryPolicy, clock: Clock) -> _T:
    """Return the result of ``ask``, which uses ``session``, over as many connections of it as ``policy`` allows.

    Raises:
        MetaqError: The last failure, or the last failure to connect.
    """
    attempts = Attempts(policy, clock)
    while True:
        try:
            return ask()
        except MetaqError as error:
            attempts.recover(session, error)
