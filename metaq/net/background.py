"""A call in a separate thread, with a time limit for the caller that waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Background(Generic[_T]):
    """Calls ``work`` in a daemon thread named ``name``, which is started at once."""

    def __init__(self, name: str, work: Callable[[], _T]) -> None:
        self._work = work
        self._answer: list[_T] = []
        self._error: Exception | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer.append(self._work())
        except Exception as error:  # raised by ``result``
            self._error = error
        finally:
            self._ended.set()

    @property
    def done(self) -> bool:
        """Whether the call has returned or raised."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds; return whether it is ``done``."""
        return self._ended.wait(timeout_s)

    def result(self) -> _T:
        """Return what the call returned, or raise what it raised. Valid when it is ``done``."""
        if self._error is not None:
            raise self._error
        return self._answer[0]
