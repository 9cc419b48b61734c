"""Futures for single messages, light enough for millions of them: they read the batch until a caller waits.

A ``concurrent.futures.Future`` consists of a dozen objects, which the garbage collector visits again and again while
many messages are in flight; settling it takes two locks. An ``asyncio.Future`` must be settled in its event loop, one
by one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import Context
from typing import Any, TypeVar

from metaq.client.batches import PENDING, Batch

S = TypeVar("S")


class MessageFuture(Future[S]):
    """A ``concurrent.futures.Future`` for a row of a batch. Made by ``future_of``.

    All methods of the base class first use its condition. The condition and the rest of the state are created on first
    use; from then on the batch notifies the future. Before that, reading a result takes no lock.
    """

    __slots__ = ("batch", "row")  # the dict of the base class is created only with the condition

    batch: Batch[Any, S]
    row: int
    # The attributes of the base class, while it has no condition.
    _made: threading.Condition | None = None
    _state = PENDING
    _result: Any = None
    _exception: BaseException | None = None

    __init__ = object.__init__  # the base class's would create the condition

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            self.batch.watch(self)
        assert self._made is not None
        return self._made

    def start(self, state: str, result: S | None, exception: BaseException | None) -> bool:
        """Create the base class's state, unless another thread has done so; return whether this call did."""
        if self._made is not None:
            return False
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        self._state, self._result, self._exception = state, result, exception
        self._made = threading.Condition()  # last: other threads check it to see that the state is complete
        return True

    def done(self) -> bool:
        return self.batch.outcomes is not None if self._made is None else super().done()

    def result(self, timeout: float | None = None) -> S:
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


class AwaitedFuture(asyncio.Future[S]):
    """An ``asyncio.Future`` for a row of a batch. Made by ``awaited_future_of``.

    The base class is initialised on the first use that needs it, in the event loop that runs then, which settles it.
    Before that, reading an available result only looks at the batch.
    """

    __slots__ = ("_batch", "row")

    _batch: Batch[Any, S] | None
    """``None`` once the base class is initialised and has the state."""
    row: int

    __init__ = object.__init__  # the base class's would look for the event loop

    def _make(self) -> None:
        batch = self._batch
        if batch is None:
            return
        batch.is_asked = True
        loop = _loop_of(batch)
        asyncio.Future.__init__(self, loop=loop)
        self._batch = None
        if not batch.add_awaited(loop, self):
            self.settle(batch)

    def settle(self, batch: Batch[Any, S]) -> None:
        """Set the result of the row, unless the future was cancelled. Call in its event loop."""
        assert batch.outcomes is not None
        assert batch.failure is not None
        if super().done():
            return
        found = batch.outcomes[self.row]
        if found is not None:
            super().set_result(found)
        else:
            super().set_exception(batch.failure)

    def done(self) -> bool:
        return super().done() if self._batch is None else self._batch.outcomes is not None

    def cancelled(self) -> bool:
        return self._batch is None and super().cancelled()

    def result(self) -> S:
        if self._batch is not None and (outcomes := self._batch.outcomes) is not None:
            found: S | None = outcomes[self.row]
            if found is not None:
                return found
        self._make()
        return super().result()

    def exception(self) -> BaseException | None:
        self._make()
        return super().exception()

    def cancel(self, msg: Any | None = None) -> bool:
        self._make()
        return super().cancel(msg)

    def set_result(self, result: S, /) -> None:
        self._make()
        super().set_result(result)

    def set_exception(self, exception: type | BaseException, /) -> None:
        self._make()
        super().set_exception(exception)

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self._make()
        super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        self._make()
        return super().remove_done_callback(fn)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        self._make()
        return super().get_loop()

    def __await__(self) -> Generator[Any, None, S]:
        self._make()
        return super().__await__()

    __iter__ = __await__

    def __repr__(self) -> str:
        self._make()
        return super().__repr__()


def awaited_future_of(row: tuple[Batch[Any, S], int]) -> asyncio.Future[S]:
    """Return an asyncio future for a row of a batch bound to an event loop."""
    future: AwaitedFuture[S] = AwaitedFuture()
    future._batch, future.row = row
    return future


def _loop_of(batch: Batch[Any, Any]) -> asyncio.AbstractEventLoop:
    """Return the loop that runs in this thread, or the one from which the batch was submitted."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        assert batch.submitter_loop is not None
        return batch.submitter_loop.loop
