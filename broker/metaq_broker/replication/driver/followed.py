"""What a member that follows does on its disk: writes runs, cuts tails, creates streams, adopts epochs.

The actions of one stream end in their order: a run is written at once if nothing else is under way, otherwise when that
has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, cast

from metaq_broker.log.streams.stream import PairStreams, StreamBytes, StreamRefused
from metaq_broker.replication.pair import events
from metaq_broker.replication.pair.actions import AdoptStreams, CutStreams, TrimStream, WriteRun
from metaq_broker.replication.pair.events import PairEvent

_LOG: Final = logging.getLogger(__name__)


class FollowedStreams:
    """``feed`` takes ``DiskDone`` and ``DiskFailed``."""

    def __init__(self, streams: PairStreams, feed: Callable[[PairEvent], None]) -> None:
        self._streams, self._feed = streams, feed
        self._waiting: deque[Callable[[], Awaitable[None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Wait for what is in progress."""
        self._waiting.clear()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def write(self, action: WriteRun) -> None:
        """Append a run; ``DiskDone`` follows when it is durable."""
        if self._task is None:
            self._write_now(action)
        else:
            run = cast("StreamBytes", action.run)
            kept = replace(action, run=run._replace(data=bytes(run.data)))  # its memory is used for later messages
            self._queue_up(lambda: self._write_queued(kept))

    async def _write_queued(self, action: WriteRun) -> None:
        self._write_now(action)

    def _write_now(self, action: WriteRun) -> None:
        stream = self._streams.get(action.stream)
        if stream is None:
            self._failed(f"stream {action.stream} is gone")
            return
        try:
            stream.append_copy(cast("StreamBytes", action.run))
        except StreamRefused as refused:
            self._failed(str(refused))
            return
        stream.when_durable(lambda error: self._durable(action.number, error))

    def _durable(self, number: int, error: StreamRefused | None) -> None:
        if error is None:
            self._feed(events.DiskDone(number))
        else:
            self._failed(str(error))

    def cut(self, action: CutStreams) -> None:
        """Keep the tails of streams in ``lost+found``, and cut them."""
        self._queue_up(lambda: self._cut(action))

    async def _cut(self, action: CutStreams) -> None:
        await self._streams.cut(action.cuts, action.epoch, action.master)
        self._feed(events.DiskDone(action.number))

    def adopt(self, action: AdoptStreams) -> None:
        """Create the streams that are missing, and replace the epochs of all."""
        self._queue_up(lambda: self._adopt(action))

    async def _adopt(self, action: AdoptStreams) -> None:
        await self._streams.adopt({name: (start.origin, start.epochs) for name, start in action.streams.items()})
        self._feed(events.DiskDone(action.number))

    def trim(self, action: TrimStream) -> None:
        """Remove files that the master has removed, too."""
        self._queue_up(lambda: self._trim(action))

    async def _trim(self, action: TrimStream) -> None:
        stream = self._streams.get(action.stream)
        if stream is not None:
            await stream.drop_before(action.start)
            if (origin := stream.origin) is not None:
                self._feed(events.StreamTrimmed(action.stream, origin.start, origin.ordinal))

    # ---- one after the other

    def _queue_up(self, work: Callable[[], Awaitable[None]]) -> None:
        self._waiting.append(work)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="pair: streams")

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._waiting.popleft()()
        except StreamRefused as refused:
            self._failed(str(refused))
        except Exception as defect:
            _LOG.exception("bug in a member that follows")
            self._failed(f"{type(defect).__name__}: {defect}")
        finally:
            self._task = None

    def _failed(self, reason: str) -> None:
        self._waiting.clear()
        self._feed(events.DiskFailed(reason))
