"""Notes about every second, in each data folder, how far its partitions are durable.

What is noted is a lower bound: a start compares it with what the partitions hold, and so finds out that durable bytes
are gone, also after a kill. It costs no put anything; the notes are written in another thread, and only if something
has changed.

Source: docs/log-format.md, "When durable bytes are gone".
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from metaq_broker.engine.stores import TopicStores

INTERVAL_S: Final = 1.0
"""How much of what was acknowledged last may be missing in the notes, in seconds."""

SHARE_MAX: Final = 0.02
"""Of the time, at most this much is spent on notes: with very many partitions they are written less often."""


class EndsRecorder:
    """See the module. Used on one event loop."""

    def __init__(self, stores: TopicStores, interval_s: float = INTERVAL_S) -> None:
        self._stores = stores
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Note ends regularly from now on, until ``stop``."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="durable ends")

    async def stop(self) -> None:
        """Note no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        clock, pause_s = asyncio.get_running_loop().time, self._interval_s
        while True:
            await asyncio.sleep(pause_s)
            started = clock()
            for store in self._stores.each_store():
                await asyncio.to_thread(store.note_ends, store.ends())
            pause_s = max(self._interval_s, (clock() - started) / SHARE_MAX)
