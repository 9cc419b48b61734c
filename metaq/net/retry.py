"""How often to try again, and how long to pause before.

Only errors whose ``retryable`` is true are worth it: no connection, no answer in time, and "no thread free" (503). The
count starts over whenever something got through, so a long read survives any number of restarts, while a broker that is
gone is given up after ``retries`` pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from metaq.errors import MetaqError
from metaq.net.clock import Clock

_T = TypeVar("_T")

PAUSE_S_MAX: Final = 10.0
"""The pause doubles with each failure in a row, up to this."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Up to ``retries`` further tries in a row (0 = none); the first after ``retry_interval_s``, then doubling."""

    retries: int = 5
    retry_interval_s: float = 0.2

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries={self.retries}: expected 0 or more")
        if not 0 < self.retry_interval_s <= PAUSE_S_MAX:
            raise ValueError(
                f"retry_interval_s={self.retry_interval_s}: expected seconds above 0, up to {PAUSE_S_MAX:g}"
            )


class Reconnectable(Protocol):
    """What ``recover`` needs of a session."""

    @property
    def closed(self) -> bool: ...

    def reopen(self) -> None: ...


class Attempts:
    """Counts failures in a row against a policy."""

    def __init__(self, policy: RetryPolicy, clock: Clock) -> None:
        self._policy, self._clock = policy, clock
        self._failures = 0

    def progressed(self) -> None:
        """Something got through: count from the start again."""
        self._failures = 0

    def pause_after(self, error: MetaqError) -> None:
        """Sleep before the next try; raise ``error`` if it is not worth one or there were enough."""
        if not error.retryable or self._failures >= self._policy.retries:
            raise error
        pause_s = min(self._policy.retry_interval_s * 2**self._failures, PAUSE_S_MAX)
        self._failures += 1
        self._clock.sleep(pause_s)

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


def persist(ask: Callable[[], _T], policy: RetryPolicy, clock: Clock) -> _T:
    """What ``ask`` returns, called again after each failure that is worth it, as often as ``policy`` allows.

    Raises:
        MetaqError: The last failure.
    """
    attempts = Attempts(policy, clock)
    while True:
        try:
            return ask()
        except MetaqError as error:
            attempts.pause_after(error)
