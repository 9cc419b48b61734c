"""What blocks, brought to a loop by threads: cancelling is prompt, errors come behind what was read before them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import cast

import pytest

from metaq.client.threads.async_iteration import MESSAGES_AT_ONCE, in_threads


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 20))


def test_all_come_in_their_order() -> None:
    async def main() -> None:
        count = 2 * MESSAGES_AT_ONCE + 1
        assert [one async for one in in_threads(range(count))] == list(range(count))

    run(main)


def test_an_error_comes_behind_what_was_read_before_it() -> None:
    def broken() -> Iterator[int]:
        yield from range(3)
        raise ZeroDivisionError

    async def main() -> None:
        messages = in_threads(broken())
        assert [await anext(messages) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ZeroDivisionError):
            await anext(messages)

    run(main)


class Waiting:
    """An iteration that waits, and notes that it was closed."""

    def __init__(self) -> None:
        self.entered, self.go_on, self.closed = threading.Event(), threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[int]:
        try:
            yield 1
            self.entered.set()
            self.go_on.wait(60)
            yield 2
        finally:
            self.closed.set()


def test_a_task_that_is_cancelled_does_not_wait_for_the_thread() -> None:
    waiting = Waiting()

    async def read() -> None:
        async for _ in in_threads(waiting):
            pass

    async def main() -> None:
        reading = asyncio.create_task(read())
        assert await asyncio.to_thread(waiting.entered.wait, 10)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not waiting.closed.is_set()
        waiting.go_on.set()
        assert await asyncio.to_thread(waiting.closed.wait, 10)

    run(main)


def test_an_iteration_that_is_left_is_closed() -> None:
    waiting = Waiting()
    waiting.go_on.set()

    async def main() -> None:
        async with aclosing(cast("AsyncIterator[int]", in_threads(waiting))) as messages:  # type: ignore[type-var]
            async for _ in messages:
                break
        assert waiting.closed.is_set()

    run(main)
