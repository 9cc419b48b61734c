"""Which servers of a cluster do not answer, and since when: no page waits for them, and each says so.

When a question takes longer than ``SUSPECT_S``, all servers are asked something small. A server that does not answer
it within ``PING_S`` is silent: the question is asked again without it, and so are all further ones. Silent servers are
asked in the background until they answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from metaq.client.threads.thread_calls import call_in_thread
from metaq.errors import DeadlineExceeded, MetaqError
from metaq.model import Address
from metaq.net.clock import wall_clock_ms

SUSPECT_S: Final = 0.3
PING_S: Final = 1.2
LOOK_S: Final = 1.4
"""Longest time of a look at all servers: of a request, and of the thread that makes it."""
AGAIN_S: Final = 1.0
"""Pause before silent servers are asked again."""
TRIES: Final = 3
"""How often a question is asked again, without servers that turned out to be silent meanwhile."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Silence:
    """A server that does not answer: since when it is known, and why."""

    since_ms: int
    error: MetaqError


class ServerWatch:
    """For the tasks of one event loop; ``away`` is for any thread.

    ``servers`` returns the known addresses, and ``ping`` asks one of them; it raises a ``MetaqError`` that is ``away``
    if there is no answer. Both block.
    """

    def __init__(self, servers: Callable[[], Collection[Address]], ping: Callable[[Address], object]) -> None:
        self._servers, self._ping = servers, ping
        self._looking: asyncio.Task[None] | None = None
        self._on_change: list[Callable[[], None]] = []
        self.silences: Mapping[Address, Silence] = {}
        """The silent servers. The mapping is replaced, never changed."""

    def away(self) -> Mapping[Address, MetaqError]:
        """Return the silent servers with the errors of the pings that found it."""
        return {address: silence.error for address, silence in self.silences.items()}

    def on_change(self, call: Callable[[], None]) -> None:
        """Call something whenever a server falls silent or answers again."""
        self._on_change.append(call)

    async def run(self) -> None:
        """Ask silent servers again, for ever."""
        while True:
            await asyncio.sleep(AGAIN_S)
            if self.silences:
                await self._look(again=True)

    async def look(self) -> None:
        """Ask all servers that are not known to be silent; wait ``LOOK_S`` at most. Calls at a time share one look."""
        if self._looking is None or self._looking.done():
            self._looking = begin(self._look())
        await asyncio.shield(self._looking)

    async def answered(self, ask: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return the answer to a question that leaves out silent servers, asked again when more of them are found.

        Raises what ``ask`` raises.
        """
        for _ in range(TRIES):
            before, asking = self.silences, begin(ask())
            try:
                if await self._is_stuck(asking, before):
                    continue
                return await asking
            except MetaqError as error:
                if not error.away or any(error is silence.error for silence in self.silences.values()):
                    raise
                await self.look()
                if not self._has_more(before):
                    raise
            finally:
                asking.cancel()
        return await ask()

    async def _is_stuck(self, asking: asyncio.Task[_T], before: Mapping[Address, Silence]) -> bool:
        """Wait for an answer; return whether a server turned out to be silent first."""
        pause_s = SUSPECT_S
        while not await _is_done(asking, pause_s):
            looking = begin(self.look())
            await asyncio.wait({asking, looking}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done() and self._has_more(before):
                return True
            pause_s *= 2
        return False

    def _has_more(self, before: Mapping[Address, Silence]) -> bool:
        return not self.silences.keys() <= before.keys()

    async def _look(self, *, again: bool = False) -> None:
        """Ask all servers, or ``again`` the silent ones, at the same time, and note which of them are silent."""
        try:
            servers = await asyncio.wait_for(call_in_thread(self._servers), LOOK_S)
        except (TimeoutError, MetaqError):  # no registry answers
            servers = tuple(self.silences)
        asked = sorted((address for address in servers if (address in self.silences) is again), key=str)
        pings = {address: begin(call_in_thread(self._ping, address)) for address in asked}
        if pings:
            await asyncio.wait(pings.values(), timeout=LOOK_S)
        found = {address: silence for address, silence in self.silences.items() if address in servers}
        for address, ping in pings.items():
            error = ping.exception() if ping.done() else DeadlineExceeded(address, "a first question", LOOK_S)
            ping.cancel()
            if not isinstance(error, MetaqError):
                found.pop(address, None)
            elif address not in found:
                found[address] = Silence(wall_clock_ms(), error)
        if found.keys() != self.silences.keys():
            self.silences = found
            for call in self._on_change:
                call()


def begin(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Return a task whose error asyncio does not log if nobody waits for it any more."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _is_done(task: asyncio.Task[Any], within_s: float) -> bool:
    done, _ = await asyncio.wait({task}, timeout=within_s)
    return bool(done)
