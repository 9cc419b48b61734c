"""A future for each message, light enough for millions of them: it looks at its batch until somebody waits for it.

That of ``concurrent.futures.Future`` is a dozen objects, which the garbage collector walks through again and again
while many messages are on their way, and settling it takes two locks.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, TypeVar

from metaq.client.batches import PENDING, Batch

S = TypeVar("S")


class MessageFuture(Future[S]):
    """As ``concurrent.futures.Future``, for a row of a batch, which ``future_of`` gives it.

    All methods of the base class begin with its condition. That is made at the first use, and with it the rest of the
    state: from then on the batch tells the future what happens. Before, asking for a result takes no lock.
    """

    __slots__ = ("batch", "row")  # beside the dict of the base class, which is not made before there is a condition

    batch: Batch[Any, S]
    row: int
    # The attributes of the base class, as long as it has no condition.
    _made: threading.Condition | None = None
    _state = PENDING
    _result: Any = None
    _exception: BaseException | None = None

    __init__ = object.__init__  # that of the base class would make the condition

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            self.batch.watch(self)
        assert self._made is not None
        return self._made

    def start(self, state: str, result: S | None, exception: BaseException | None) -> bool:
        """Begin to be a future of its own, unless another thread has had it begin; return whether it has."""
        if self._made is not None:
            return False
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        self._state, self._result, self._exception = state, result, exception
        self._made = threading.Condition()  # the last: other threads go by it
        return True

    def done(self) -> bool:
        """See the base class."""
        return self.batch.outcomes is not None if self._made is None else super().done()

    def result(self, timeout: float | None = None) -> S:
        """See the base class."""
        if self._made is None and (outcomes := self.batch.outcomes) is not None:
            found = outcomes[self.row]
            if found is not None:
                return found
        return super().result(timeout)


def future_of(row: tuple[Batch[Any, S], int]) -> Future[S]:
    """Return a future for a row of a batch."""
    future: MessageFuture[S] = MessageFuture()
    future.batch, future.row = row
    return future
