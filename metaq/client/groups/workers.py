"""Threads that handle partitions in parallel, and the messages of each partition in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Generic

from metaq.client.groups.deliveries import D
from metaq.client.groups.state import ConsumerState
from metaq.net.clock import Clock

_QUANTUM: Final = 64
"""Messages of a partition that a thread handles before it looks at other partitions."""

_LOOK_S: Final = 0.5


class Workers(Generic[D]):
    """``count`` daemon threads that call ``handle``: a handler that never returns does not keep the program alive."""

    def __init__(
        self, state: ConsumerState[D, Any, Any], count: int, handle: Callable[[D], object], clock: Clock
    ) -> None:
        self._state, self._handle, self._clock = state, handle, clock
        self._stopped = False
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"metaq-worker-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise the error that ended a thread: a handler raised an exception other than ``Exception``, or rejecting
        failed.
        """
        if self._failure is not None:
            raise self._failure

    def stop(self, timeout_s: float) -> None:
        """Stop after the current messages; wait for the threads, at most ``timeout_s`` in all."""
        self._stopped = True
        with self._state.lock:
            self._state.notify()
        deadline_s = self._clock.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - self._clock.monotonic()))

    def _run(self) -> None:
        try:
            while (delivery := self._take()) is not None:
                self._work_on(delivery)
        except BaseException as error:  # raised by the reader
            with self._state.lock:
                self._failure = self._failure or error
                self._state.notify()

    def _take(self) -> D | None:
        state = self._state
        with state.lock:
            while not self._stopped and state.failure is None and self._failure is None:
                now_s = self._clock.monotonic()
                if (delivery := state.take(now_s, free_only=True)) is not None:
                    return delivery
                state.changed.wait(state.wait_s(_LOOK_S, now_s))
        return None

    def _work_on(self, first: D) -> None:
        delivery: D | None = first
        try:
            for _ in range(_QUANTUM):
                if delivery is None or self._stopped:
                    break
                self._handle(delivery)
                with self._state.lock:
                    delivery = self._state.take_more(first, self._clock.monotonic()) if not self._stopped else None
            else:
                if delivery is not None:
                    self._handle(delivery)
        finally:
            self._state.handled(first)
