"""Work beside everything else, until it is stopped. Nobody awaits it: a defect that ends it is logged at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

_LOG: Final = logging.getLogger(__name__)


def begin_work(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Begin ``work`` on the running loop; ``name`` is for the log."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_log_defect)
    return task


async def stop_work(task: asyncio.Task[None] | None) -> None:
    """Cancel work, and return when it has ended; never raises what it raised."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def _log_defect(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (defect := task.exception()) is not None:
        _LOG.error("bug: background work has ended", exc_info=defect, extra={"fields": {"work": task.get_name()}})
