"""Questions to servers: each has a deadline and a thread of its own, and the number of threads is limited.

The clients of ``metaq`` block. A question runs in a daemon thread, so that a server that hangs delays neither the event
loop nor the end of the process. Its slot is free again when the thread has ended, not when the deadline has passed: a
frozen broker uses up slots, never memory. Questions that many clients repeat are shared: one is asked, its answer
serves all that ask within a short time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from metaq.client.threads.thread_calls import call_in_thread
from metaq.discovery.kept import serves_s
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_console.cluster.watch import ServerWatch
from metaq_console.errors import RequestFailed

_T = TypeVar("_T")

RUNNING_MAX: Final = 16
"""Questions that run at a time."""
WAITING_MAX: Final = 200
"""Questions that wait for a slot; further ones are refused at once."""
SHARED_MAX: Final = 500
"""Answers that are kept."""
SLOW_S: Final = 0.1
"""A question that took longer is slow: its last answer is returned at once while the next one is on its way."""
STALE_S: Final = 10.0
"""For how long an answer to a slow question is returned beyond its time, while the next one is on its way."""


@dataclass(slots=True, eq=False)
class _Shared:
    """One shared question: its task, and until when its answer counts; ``None`` while it is asked."""

    task: asyncio.Task[Any]
    began_s: float
    fresh_until_s: float | None = None
    stale_until_s: float = 0.0
    next: _Shared | None = None


class Questions:
    """Asks questions for the tasks of one event loop."""

    def __init__(
        self,
        within_s: float,
        clock: Clock = SYSTEM_CLOCK,
        running_max: int = RUNNING_MAX,
        watch: ServerWatch | None = None,
    ) -> None:
        """``within_s``: the deadline of a question that gives none. ``watch``: of the servers that are asked."""
        self.watch: Final = ServerWatch(tuple, repr) if watch is None else watch
        self.watch.on_change(self.forget)
        self._within_s, self._clock = within_s, clock
        self._slots = asyncio.Semaphore(running_max)
        self._waiting = 0
        self._shared: OrderedDict[Hashable, _Shared] = OrderedDict()

    async def ask(self, call: Callable[[], _T], *, what: str, within_s: float | None = None) -> _T:
        """Return the result of ``call``, which is called again without the servers that turn out to be silent. Raises
        as ``ask_once``.
        """
        return await self.watch.answered(lambda: self.ask_once(call, what=what, within_s=within_s))

    async def ask_once(self, call: Callable[[], _T], *, what: str, within_s: float | None = None) -> _T:
        """Return the result of ``call``, which runs in a thread; ``what`` names the question in errors.

        Raises:
            RequestFailed: No answer within the deadline (504), or too many questions wait (503).
        """
        within_s = self._within_s if within_s is None else within_s
        until_s = self._clock.monotonic() + within_s
        await self._take_slot(what, within_s)
        task = asyncio.ensure_future(call_in_thread(call))
        task.add_done_callback(self._release)
        left_s = max(0.0, until_s - self._clock.monotonic())
        done, _ = await asyncio.wait({task}, timeout=left_s)
        if not done:
            raise _late(what, within_s)
        return task.result()

    async def shared(
        self,
        key: Hashable,
        call: Callable[[], _T],
        *,
        what: str,
        fresh_s: float,
        is_live: bool = False,
        again: bool = True,
    ) -> _T:
        """Return the answer to the question ``key``: one that was asked within ``fresh_s``, or is being asked, or new.

        An answer that took long serves for longer, unless it ``is_live``. If the question is a slow one, and its answer
        is out of date by ``STALE_S`` at most, that is returned at once, and the next one is asked for. ``again``: ask
        as ``ask``, else as ``ask_once``. Raises as these. Errors are not kept.
        """
        ask = self.ask if again else self.ask_once
        begin = partial(self._begin, key, lambda: ask(call, what=what), fresh_s, is_live)
        now_s = self._clock.monotonic()
        self._drop_old(now_s)
        found = self._shared.get(key)
        if found is not None and found.fresh_until_s is not None and found.fresh_until_s <= now_s:
            if found.next is None:
                found.next = begin(found)
            found = found if now_s < found.stale_until_s else found.next
        elif found is None:
            found = self._shared[key] = begin(None)
        self._shared.move_to_end(key)
        while len(self._shared) > SHARED_MAX:
            self._shared.popitem(last=False)
        # A client that goes away must not cancel the question of the others.
        result: _T = await asyncio.shield(found.task)
        return result

    def _drop_old(self, now_s: float) -> None:
        """Drop answers that are out of date: one with messages may have megabytes."""
        settled = [(key, one) for key, one in self._shared.items() if one.fresh_until_s is not None]
        for key, one in settled:
            if one.stale_until_s <= now_s and one.next is None:
                del self._shared[key]

    def _begin(
        self,
        key: Hashable,
        ask: Callable[[], Coroutine[Any, Any, Any]],
        fresh_s: float,
        is_live: bool,
        before: _Shared | None,
    ) -> _Shared:
        """Ask a shared question; its answer takes the place of the one ``before``."""
        task = asyncio.ensure_future(ask())
        asked = _Shared(task, self._clock.monotonic())
        task.add_done_callback(lambda _: self._settled(key, asked, fresh_s, is_live, before))
        return asked

    def forget(self) -> None:
        """Forget all answers, because something was changed, which later questions must see."""
        self._shared.clear()

    async def _take_slot(self, what: str, within_s: float) -> None:
        if self._waiting >= WAITING_MAX:
            raise RequestFailed(
                503, "too_many_questions", f"{what}: {WAITING_MAX} questions wait already", retryable=True
            )
        self._waiting += 1
        try:
            await asyncio.wait_for(self._slots.acquire(), within_s)
        except TimeoutError:
            raise _late(what, within_s) from None
        finally:
            self._waiting -= 1

    def _release(self, task: asyncio.Future[Any]) -> None:
        self._slots.release()
        if not task.cancelled():
            task.exception()  # nobody waits for an error after the deadline: mark it as seen

    def _settled(
        self, key: Hashable, shared: _Shared, fresh_s: float, is_live: bool, before: _Shared | None
    ) -> None:
        now_s = self._clock.monotonic()
        took_s = 0.0 if is_live else now_s - shared.began_s
        shared.fresh_until_s = now_s + serves_s(fresh_s, took_s)
        shared.stale_until_s = shared.fresh_until_s + (STALE_S if took_s > SLOW_S else 0.0)
        failed = shared.task.cancelled() or shared.task.exception() is not None
        kept = self._shared.get(key)
        if kept is None or kept not in (shared, before):
            return  # it was forgotten meanwhile
        if failed:
            del self._shared[key]
        else:
            self._shared[key] = shared


def _late(what: str, within_s: float) -> RequestFailed:
    return RequestFailed(504, "deadline_exceeded", f"{what}: no answer within {within_s:g} s", retryable=True)
