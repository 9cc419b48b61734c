"""Adapts blocking iterators to ``async for``: threads fetch messages in batches, and the event loop yields them.

A cancelled task does not wait for the thread that is fetching for it; the thread closes the iterator when it returns.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

from metaq.client.threads.thread_calls import call_in_thread, carry_out

M = TypeVar("M")

MESSAGES_AT_ONCE: Final = 500
"""Limit on messages that a thread fetches in one step."""


class _Steps(Generic[M]):
    """A blocking iterator that is advanced in steps, by one thread at a time."""

    def __init__(self, messages: Iterable[M]) -> None:
        self._iterator: Iterator[M] = iter(messages)
        self._failure: BaseException | None = None
        self._taking = threading.Lock()
        self.busy = False
        """Whether a thread is fetching, or is about to."""

    def take(self) -> list[M]:
        """Return the next messages, or an empty list at the end. An error that follows some messages is raised by the
        next call.
        """
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
        """Close the iterator, after the current step."""
        with self._taking:
            if isinstance(self._iterator, Generator):
                self._iterator.close()


async def in_threads(messages: Iterable[M]) -> AsyncIterator[M]:
    """Yield the items of a blocking iterable."""
    steps = _Steps(messages)
    try:
        while some := await _next(steps):
            for message in some:
                yield message
    finally:
        if steps.busy:  # a separate thread waits for the one that is fetching, then closes the iterator
            threading.Thread(target=steps.close, name="metaq-close", daemon=True).start()
        else:
            await carry_out(steps.close)


async def _next(steps: _Steps[M]) -> list[M]:
    steps.busy = True
    return await call_in_thread(steps.take)
