"""Calls in threads that open or close something, for tasks that may be cancelled meanwhile: nothing stays open.

``asyncio.to_thread`` leaves a call that has begun to itself, and never makes one that no thread was free for.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

CANCELLED_S: Final = 5.0
"""How long a task that is cancelled while it opens something waits until that is closed again."""


async def carry_out(function: Callable[..., object], *values: object) -> None:
    """Call a function that closes or ends something, also if the task is cancelled, which does not wait for it then."""
    await asyncio.shield(_call(function, *values))


async def open_whole(open_: Callable[[], object], close: Callable[[], object]) -> None:
    """Open something. If the task is cancelled meanwhile, ``close`` is called as soon as it is open.

    That is waited for, for ``CANCELLED_S`` at most; then it is done when the call comes back.
    """
    lock = threading.Lock()
    is_open = is_unwanted = False

    def work() -> None:
        nonlocal is_open
        if is_unwanted:
            return
        open_()
        with lock:
            is_open, late = True, is_unwanted
        if late:
            close()

    opening = _call(work)
    try:
        await asyncio.shield(opening)
    except asyncio.CancelledError:
        with lock:
            is_unwanted, was_open = True, is_open
        ending = _call(close) if was_open else opening
        await asyncio.wait([ending], timeout=CANCELLED_S)
        if ending.done():
            with suppress(Exception):  # the task is cancelled, whatever else went wrong
                ending.result()
        raise


def _call(function: Callable[..., object], *values: object) -> asyncio.Future[object]:
    """Call a function in a thread. The future is no task: what ends all tasks of a loop leaves it alone."""
    context = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(None, lambda: context.run(function, *values))
