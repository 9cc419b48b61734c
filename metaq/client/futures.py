"""A future for each message, light enough for millions of them: it has no condition until somebody waits for it.

That of ``concurrent.futures.Future`` is a dozen objects, which the garbage collector walks through again and again
while many messages are on their way. It took most of the CPU of ``submit``.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Final, TypeVar

S = TypeVar("S")

# The states of the base class.
_PENDING: Final = "PENDING"
_RUNNING: Final = "RUNNING"
_FINISHED: Final = "FINISHED"
_UNSETTLED: Final = (_PENDING, _RUNNING)

_STATES: Final = threading.RLock()
"""Guards the state of futures that have no condition, and giving them one."""


class MessageFuture(Future[S]):
    """As ``concurrent.futures.Future``. Its condition is made at the first use; before, no method of the base class
    has looked at the state, so the state may change without it."""

    def __init__(self) -> None:
        # The attributes of the base class, whose own __init__ would make the condition.
        self._made: threading.Condition | None = None
        self._state = _PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            made = threading.Condition()  # outside of the lock: it may have garbage collected
            with _STATES:
                self._made = self._made or made
        return self._made

    def done(self) -> bool:
        """See the base class."""
        return self._state not in _UNSETTLED

    def result(self, timeout: float | None = None) -> S:
        """See the base class."""
        if self._state == _FINISHED and self._exception is None:
            found: S = self._result
            return found
        return super().result(timeout)

    def set_running_or_notify_cancel(self) -> bool:
        """See the base class."""
        with _STATES:
            if self._made is None and self._state == _PENDING:
                self._state = _RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: S) -> None:
        """See the base class."""
        with _STATES:
            if self._made is None and self._state in _UNSETTLED:
                self._result, self._state = result, _FINISHED
                return  # nobody has waited or left a callback
        super().set_result(result)
