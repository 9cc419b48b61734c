"""A call in a thread of its own, which its caller waits for as long as it likes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Background(Generic[_T]):
    """Calls ``work`` in a thread named ``name``, from now on. The end of the program does not wait for it."""

    def __init__(self, name: str, work: Callable[[], _T]) -> None:
        self._work = work
        self._answer: list[_T] = []
        self._error: Exception | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer.append(self._work())
        except Exception as error:  # it is the caller's: ``result`` raises it
            self._error = error
        finally:
            self._ended.set()

    @property
    def done(self) -> bool:
        """Whether the call has come to its end, in one way or the other."""
        return self._ended.is_set()

    def wait(self, patience_s: float) -> bool:
        """Wait for at most so long; return whether it is ``done``."""
        return self._ended.wait(patience_s)

    def result(self) -> _T:
        """What the call returned; raises what it raised. Only when it is ``done``."""
        if self._error is not None:
            raise self._error
        return self._answer[0]
