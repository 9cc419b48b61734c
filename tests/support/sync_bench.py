"""Logs of one broker whose syncs a test watches, and what was acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from metaq_broker.clock import ManualClock
from metaq_broker.storage.files import Files
from metaq_broker.storage.flush import GroupCommit
from metaq_broker.storage.partition_log import LogSettings, PartitionLog
from stored import START_MS, frames


class SyncBench:
    """``told`` has the names of logs that were acknowledged, in order, each with the error, if there was one."""

    def __init__(self, root: Path, files: Files, commit: GroupCommit) -> None:
        self.root, self.commit = root, commit
        self._files = files
        self.told: list[tuple[str, Exception | None]] = []

    def open(self, folder: Path, settings: LogSettings) -> PartitionLog:
        """A log whose names are durable."""
        made = PartitionLog.open(self._files, ManualClock(START_MS), folder, settings)
        made.append(frames(1))
        made.sync()
        return made

    def put(self, *logs: PartitionLog) -> None:
        """Append a message to each, and wait for it to be durable: not before the caller goes on."""
        with self.commit.together():
            for log in logs:
                log.append(frames(1, log.end_ordinal))
                end, name = log.end_offset, log.directory.name

                def done(error: Exception | None, log: PartitionLog = log, end: int = end, name: str = name) -> None:
                    assert (error is None) == (log.readable_end >= end)
                    self.told.append((name, error))

                self.commit.wait(log, end, done)
                assert log.readable_end < end


B = TypeVar("B", bound=SyncBench)


def played(bench: B, scenario: Callable[[B], Coroutine[Any, Any, None]]) -> B:
    """Run a scenario to its end, and stop."""

    async def run() -> B:
        await scenario(bench)
        await bench.commit.drain()
        bench.commit.stop()
        return bench

    return asyncio.run(run())
