"""Iterations that block, for ``async for``: threads take the messages, some at a time, and the loop gets them.

A task that is cancelled does not wait for the thread that is taking messages for it: that one closes the iteration when
it has come back.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

from metaq.client.thread_calls import call_in_thread, carry_out

M = TypeVar("M")

MESSAGES_AT_ONCE: Final = 500
"""Messages that a thread brings to the loop at a time."""


class _Steps(Generic[M]):
    """An iteration that is carried out in steps, by one thread at a time."""

    def __init__(self, messages: Iterable[M]) -> None:
        self._iterator: Iterator[M] = iter(messages)
        self._failure: BaseException | None = None
        self._taking = threading.Lock()
        self.busy = False
        """Whether a thread is, or will be, taking messages."""

    def take(self) -> list[M]:
        """Return the next messages; none at the end. What goes wrong behind some of them, the next call raises."""
        with self._taking:
            try:
                if self._failure is not None:
                    raise self._failure
                return self._some()
            finally:
                self.busy = False

    def _some(self) -> list[M]:
        found: list[M] = []
        try:
            found.extend(islice(self._iterator, MESSAGES_AT_ONCE))
        except Exception as error:
            if not found:
                raise
            self._failure = error
        return found

    def close(self) -> None:
        """End the iteration, behind the step that is under way."""
        with self._taking:
            if isinstance(self._iterator, Generator):
                self._iterator.close()


async def in_threads(messages: Iterable[M]) -> AsyncIterator[M]:
    """Yield what an iteration yields that blocks."""
    steps = _Steps(messages)
    try:
        while some := await _next(steps):
            for message in some:
                yield message
    finally:
        if steps.busy:  # a thread of its own waits until the one that takes messages has come back
            threading.Thread(target=steps.close, name="metaq-close", daemon=True).start()
        else:
            await carry_out(steps.close)


async def _next(steps: _Steps[M]) -> list[M]:
    steps.busy = True
    return await call_in_thread(steps.take)
