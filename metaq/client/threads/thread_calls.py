"""Blocking calls in threads, for tasks that may be cancelled: the only way from asyncio to a blocking object.

A class of asyncio is made from a blocking one with ``InThreads`` and ``awaited``, a line for each method.

``call_in_thread`` is for requests: a call that hangs at a frozen broker delays neither the end of the loop, nor the end
of the program, nor other calls. ``asyncio.to_thread`` has a few threads for all calls, and ``asyncio.run`` waits for
them. Opening and closing is waited for, so that nothing stays open; these calls run in the loop's own threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, cast

B = TypeVar("B", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")

CANCELLED_S: Final = 5.0
"""How long a task that is cancelled while it opens something waits for it to be closed again."""


async def call_in_thread(function: Callable[P, R], *values: P.args, **named: P.kwargs) -> R:
    """Call a function in a separate thread, and return or raise its outcome.

    A cancelled task does not wait; a later result is dropped.
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
    with suppress(RuntimeError):  # the loop is closed: no task waits any more
        loop.call_soon_threadsafe(outcome)


def _succeed(future: asyncio.Future[R], result: R) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[R], error: BaseException) -> None:
    if isinstance(error, StopIteration):  # of a program's function: futures refuse it, and the task would wait for ever
        error, stopped = RuntimeError(f"the call raised {error!r}"), error
        error.__cause__ = stopped
    if not future.done():
        future.set_exception(error)


class InThreads(Generic[B]):
    """An object of asyncio in front of a blocking one, whose methods it calls in threads."""

    def __init__(self, blocking: B) -> None:
        self._blocking = blocking


def awaited(
    method: Callable[Concatenate[B, P], R],
) -> Callable[Concatenate[InThreads[B], P], Coroutine[Any, Any, R]]:
    """Return a method of the blocking class for asyncio, with its parameters and docstring; see ``call_in_thread``."""

    @wraps(method)
    async def call(self: InThreads[B], *values: P.args, **named: P.kwargs) -> R:
        bound: Callable[P, R] = getattr(self._blocking, method.__name__)
        return await call_in_thread(bound, *values, **named)

    result: Callable[Concatenate[InThreads[B], P], Coroutine[Any, Any, R]] = cast(Any, call)  # ``wraps`` names ``self``
    return result


async def carry_out(function: Callable[..., object], *values: object) -> None:
    """Call a function that closes or ends something, even if the task is cancelled; a cancelled task does not wait for
    it.
    """
    await asyncio.shield(begin_in_thread(function, *values))


async def open_whole(open_: Callable[[], object], close: Callable[[], object]) -> None:
    """Open something. If the task is cancelled meanwhile, call ``close`` as soon as it is open.

    A cancelled task waits ``CANCELLED_S`` at most; later, ``close`` runs when the opening call returns.
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

    opening = begin_in_thread(work)
    try:
        await asyncio.shield(opening)
    except asyncio.CancelledError:
        with lock:
            is_unwanted, was_open = True, is_open
        ending = begin_in_thread(close) if was_open else opening
        await asyncio.wait([ending], timeout=CANCELLED_S)
        if ending.done():
            with suppress(Exception):  # the task is cancelled: this error does not matter
                ending.result()
        raise


def begin_in_thread(function: Callable[..., object], *values: object) -> asyncio.Future[object]:
    """Call a function in a thread, also if no task awaits the future. The future is not a task, so cancelling all tasks
    of the loop does not affect it.
    """
    context = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(None, lambda: context.run(function, *values))
