"""Tests that are coroutines, and waiting in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

TEST_S = 240.0
DEADLINE_S = 120.0
LEFT_S = 60.0
"""Limits say how long something may hang, not how long it takes: a slow machine must not fail a test."""

ATTEMPTS = 5

PAUSE_S_MAX = 0.05
"""A condition that takes long is looked at more rarely: the look competes with what it waits for."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own, for ``TEST_S`` at most."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(_limited(test(*arguments, **named)))

    return run


def run_watched(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` for ``TEST_S`` at most; a callback that fails, or a task that goes on after it, fails the test.

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


def quickest_s(work: Callable[[], object], good_s: float) -> float:
    """Return the seconds that ``work`` takes, at the quickest of ``ATTEMPTS``, or of fewer if one is quick enough.

    For what must not wait: a busy machine delays one attempt or two, and a wait that is there delays each.
    """
    quickest = float("inf")
    for _ in range(ATTEMPTS):
        began_s = time.monotonic()
        work()
        quickest = min(quickest, time.monotonic() - began_s)
        if quickest < good_s:
            break
    return quickest


async def _limited(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(TEST_S):  # in the same task: a test may count those that are left
        await work


async def until(condition: Callable[[], object], what: str = "a condition", deadline_s: float = DEADLINE_S) -> None:
    """Let the loop run until ``condition`` holds; fail with ``what`` when it does not in time."""
    end, pause_s = time.monotonic() + deadline_s, 0.001
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s} s in vain: {what}"
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, PAUSE_S_MAX)
