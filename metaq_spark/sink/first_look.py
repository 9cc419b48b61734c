"""What a write has to know of its brokers, looked for when its writer is made and again where a broker was away then.

Spark makes the writer of each micro-batch on the driver and does not say which one it is; tasks know. So a broker that
is away is no error of a stream's writer yet. Batch 0 fails in its tasks, at once: a wrong option looks the same. A
later batch has written before, so its broker is waited for (``brokerWaitMs``), and so is one that a commit needs.
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
    """What was found, or why nothing was. Pickled with the writer."""

    found: T | None = None
    error: MetaqError | None = None

    @classmethod
    def of(cls, look: Callable[[], T], *, streaming: bool) -> FirstLook[T]:
        """Look; an error of a batch write, and one that waiting does not mend, is raised."""
        try:
            return cls(look())
        except MetaqError as error:
            if not (streaming and (error.away or isinstance(error, TopicNotFound))):
                raise
            return cls(error=error)

    def get(self, look_again: Callable[[], T], *, begun: bool) -> T:
        """What was found; otherwise what ``look_again`` finds, if the query has ``begun`` to write before.

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
    """What ``look`` returns. A topic that is not offered is waited for as well: its brokers may be restarting.

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
    """No broker that is there takes messages for a topic."""

    retryable = away = True

    def __init__(self, cause: TopicNotFound) -> None:
        self.cause = cause
        super().__init__(cause)

    def __str__(self) -> str:
        return str(self.cause)
