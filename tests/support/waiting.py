"""Tests that are coroutines, and waiting in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

TEST_S = 60.0
DEADLINE_S = 30.0
LEFT_S = 5.0


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own, for a minute at most."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(_limited(test(*arguments, **named)))

    return run


def run_watched(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` for a minute at most; a callback that fails, or a task that goes on after it, fails the test.

    A generator that was left early is closed by a task of the loop's.
    """
    problems: list[dict[str, Any]] = []

    async def watch() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        await _limited(work)
        own = asyncio.current_task()
        await until(lambda: asyncio.all_tasks() == {own}, "tasks that are left come to their end", LEFT_S)

    asyncio.run(watch())
    assert problems == []


async def _limited(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(TEST_S):  # in the same task: a test may count those that are left
        await work


async def until(condition: Callable[[], object], what: str = "a condition", deadline_s: float = DEADLINE_S) -> None:
    """Let the loop run until ``condition`` holds; fail with ``what`` when it does not in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s} s in vain: {what}"
        await asyncio.sleep(0.001)
