"""Blocking calls in threads, for tasks that may be cancelled meanwhile.

``call_in_thread`` is for requests: a call that hangs, at a broker that is frozen, delays neither the end of the loop,
nor that of the program, nor other calls. ``asyncio.to_thread`` has a few threads for all calls, and ``asyncio.run``
waits for them. What opens or closes something is waited for, so that nothing stays open; the loop's own threads do it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

CANCELLED_S: Final = 5.0
"""How long a task that is cancelled while it opens something waits until that is closed again."""


async def call_in_thread(function: Callable[P, R], *values: P.args, **named: P.kwargs) -> R:
    """Call a function in a thread of its own, and return or raise what it does.

    A task that is cancelled does not wait for it; what the call returns later is dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    work = partial(contextvars.copy_context().run, function, *values, **named)
    threading.Thread(target=_settle, args=(loop, future, work), name="metaq-call", daemon=True).start()
    return await future


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[R], work: Callable[[], R]) -> None:
    try:
        outcome = partial(_succeed, future, work())
    except BaseException as error:
        outcome = partial(_fail, future, error)
    with suppress(RuntimeError):  # the loop is closed: nobody awaits any more
        loop.call_soon_threadsafe(outcome)


def _succeed(future: asyncio.Future[R], result: R) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[R], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


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
