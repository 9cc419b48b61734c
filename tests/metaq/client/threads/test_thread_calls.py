"""Blocking calls in threads: one that hangs delays neither other calls nor the end of the loop."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest
from waiting import in_loop

from metaq.client.threads.thread_calls import call_in_thread

NAME: ContextVar[str] = ContextVar("NAME")


@in_loop
async def test_results_errors_and_context_are_those_of_the_call() -> None:
    NAME.set("here")
    assert await call_in_thread(NAME.get) == "here"
    assert await call_in_thread(sorted, [2, 1], reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        await call_in_thread(divmod, 1, 0)


@in_loop
async def test_a_function_that_raises_stop_iteration_leaves_no_task_waiting() -> None:
    """A partitioner of ``next(...)`` may do so; a future refuses such an error."""
    with pytest.raises(RuntimeError, match="the call raised StopIteration") as raised:
        async with asyncio.timeout(60):
            await call_in_thread(next, iter(()))
    assert isinstance(raised.value.__cause__, StopIteration)


def test_calls_that_hang_delay_nothing() -> None:
    release, entered = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        entered.release()
        assert release.wait(120)

    async def main() -> int:
        hanging = [asyncio.create_task(call_in_thread(hang)) for _ in range(50)]
        for _ in hanging:
            assert await call_in_thread(entered.acquire, timeout=60)
        hanging[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging[0]
        return await call_in_thread(int, "7")

    ended, outcomes = threading.Event(), list[int]()

    def run() -> None:
        outcomes.append(asyncio.run(main()))  # which ends the other tasks
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        assert ended.wait(60)
        assert outcomes == [7]
    finally:
        release.set()
