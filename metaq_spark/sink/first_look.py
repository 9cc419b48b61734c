"""A write's first look at its brokers, when its writer is created, and again later if a broker was away.

Spark creates the writer of each micro-batch on the driver without the batch's number, which only tasks know. So a
broker that is away does not fail a stream's writer yet. Batch 0 fails at once in its tasks, because a wrong option
looks the same. For a later batch, and for a commit, the broker is waited for (``brokerWaitMs``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from metaq.errors import MetaqError, TopicNotFound
from metaq.net.clock import Clock
from metaq.net.retry import RetryPolicy, persist

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FirstLook(Generic[T]):
    """The result, or the error. Pickled with the writer."""

    found: T | None = None
    error: MetaqError | None = None

    @classmethod
    def of(cls, look: Callable[[], T], *, streaming: bool) -> FirstLook[T]:
        """Look; raise an error of a batch write, and one that waiting cannot fix."""
        try:
            return cls(look())
        except MetaqError as error:
            if not (streaming and (error.away or isinstance(error, TopicNotFound))):
                raise
            return cls(error=error)

    def get(self, look_again: Callable[[], T], *, begun: bool) -> T:
        """Return the result; otherwise call ``look_again``, if the query has ``begun`` to write before.

        Raises:
            MetaqError: A broker is away, and the query has not begun; or as ``look_again``.
        """
        if self.found is not None:
            return self.found
        assert self.error is not None
        if not begun:
            raise self.error
        return look_again()


def wait_for_offer(look: Callable[[], T], policy: RetryPolicy, clock: Clock) -> T:
    """Return the result of ``look``, repeated as ``policy`` says: ``look`` itself repeats nothing. Also waits for a
    topic that is not offered: its brokers may be restarting.

    Raises:
        MetaqError: The last failure.
    """

    def ask() -> T:
        try:
            return look()
        except TopicNotFound as error:
            raise _NotOffered(error) from error

    try:
        return persist(ask, policy, clock)
    except _NotOffered as error:
        raise error.cause from None


class _NotOffered(MetaqError):
    """No present broker accepts messages for a topic."""

    retryable = away = True

    def __init__(self, cause: TopicNotFound) -> None:
        self.cause = cause
        super().__init__(cause)

    def __str__(self) -> str:
        return str(self.cause)
