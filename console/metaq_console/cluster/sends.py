"""Messages that are sent at once, with a result for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from metaq.client.records import Sent
from metaq.client.rocketmq.records import RocketSent
from metaq.errors import MetaqError
from metaq.net.clock import SYSTEM_CLOCK
from metaq_console.cluster.values import SendResult

Submitted = Future[Any]
"""Settled with a ``Sent`` or ``RocketSent``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOutcome:
    """Where a message was stored, or why it may not be."""

    sent: Sent | RocketSent | None
    error: str | None

    def as_sent(self, topic: str) -> SendResult:
        """Return the result for a client."""
        sent = self.sent
        return SendResult(
            ok=sent is not None,
            topic=topic,
            partition=None if sent is None else str(sent.partition),
            offset=None if sent is None else sent.offset,
            message_id=None if sent is None else str(sent.message_id),
            error=self.error,
        )


def outcomes(submissions: Sequence[Callable[[], Submitted]], within_s: float) -> list[SendOutcome]:
    """Submit each message, wait for all of them for ``within_s`` at most, and return what became of each.

    A message that cannot be submitted does not stop the others.
    """
    submitted = [_submit(submission) for submission in submissions]
    until_s = SYSTEM_CLOCK.monotonic() + within_s
    return [
        one if isinstance(one, SendOutcome) else _outcome(one, max(0.0, until_s - SYSTEM_CLOCK.monotonic()), within_s)
        for one in submitted
    ]


def _submit(submission: Callable[[], Submitted]) -> Submitted | SendOutcome:
    try:
        return submission()
    except (MetaqError, ValueError, TypeError) as error:
        return SendOutcome(sent=None, error=str(error))


def _outcome(future: Submitted, left_s: float, within_s: float) -> SendOutcome:
    try:
        return SendOutcome(sent=future.result(left_s), error=None)
    except FutureTimeout:
        return SendOutcome(sent=None, error=f"no acknowledgement within {within_s:g} s; it may be stored nevertheless")
    except (MetaqError, ValueError, TypeError) as error:
        return SendOutcome(sent=None, error=str(error))
