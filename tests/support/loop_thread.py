"""An event loop in a thread of its own, for servers that run in the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

DEADLINE_S = 60.0

T = TypeVar("T")


class LoopThread:
    """Runs from the start until ``close``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; return what it returned."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
