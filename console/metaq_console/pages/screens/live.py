"""What arrives in a topic from now on, as an event stream of rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response, StreamingResponse

from metaq_console.cluster.cluster_questions import ClusterQuestions
from metaq_console.errors import RequestFailed
from metaq_console.pages.rendering import url
from metaq_console.pages.screens.messages import DECODER_NAMES, MessageRow, WantedMessages, asked_of, row_preview
from metaq_console.pages.visit import Visit

TICK_S: Final = 1.0
SHOWN_MAX: Final = 50
"""Messages of a tick: nobody reads more. The others of that tick are left out, and the page says so."""
PARTITIONS_TICKS: Final = 5
"""Every so many ticks, new partitions are looked for."""
STREAMS_MAX: Final = 20
"""Streams of a process at a time."""


class LiveStreams:
    """Counts the streams of one process."""

    def __init__(self) -> None:
        self.running = 0


async def live(visit: Visit) -> Response:
    """Show the page that follows a topic."""
    asked = asked_of(visit)
    await visit.ask(("partitions", asked.topic), visit.console.cluster.partitions(asked.topic), [])
    address = url("/topic/live/stream", topic=asked.topic, text=asked.text, tag=asked.tag, **{"as": asked.decoder})
    return visit.page("live.html", "topics", topic=asked.topic, asked=asked, decoders=DECODER_NAMES, stream=address)


async def live_stream(visit: Visit, streams: LiveStreams) -> Response:
    """Return the stream of rows; it ends when the page goes away.

    Raises:
        RequestFailed: Too many streams run.
    """
    if visit.request.method == "HEAD":  # nobody reads the rows, and the answer would have no end
        return Response(media_type="text/event-stream")
    if streams.running >= STREAMS_MAX:
        raise RequestFailed(503, "too_many_streams", f"{STREAMS_MAX} pages follow topics already", retryable=True)
    return StreamingResponse(
        _events(visit, streams), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


async def _events(visit: Visit, streams: LiveStreams) -> AsyncIterator[str]:
    asked = asked_of(visit)
    follower = Follower(visit.console.cluster, asked)
    streams.running += 1
    try:
        yield "retry: 2000\n\n"
        while True:
            try:
                rows, skipped = await follower.tick()
            except RequestFailed as error:
                yield _event("away", str(error))
            else:
                if rows:
                    yield _event("rows", visit.part("message_rows.html", rows=rows, asked=asked, fresh=True))
                yield _event("skipped", visit.t("More arrive than are shown.")) if skipped else _event("alive", "")
            await asyncio.sleep(TICK_S)
    finally:
        streams.running -= 1


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n"


class Follower:
    """Reads what is new in a topic, tick by tick."""

    def __init__(self, cluster: ClusterQuestions, asked: WantedMessages) -> None:
        self._cluster, self._asked = cluster, asked
        self._positions: dict[str, int] | None = None
        self._ticks = 0

    async def tick(self) -> tuple[list[MessageRow], bool]:
        """Return rows for new messages, the newest first, and whether some were left out.

        Raises:
            RequestFailed: The cluster does not answer. The next tick goes on from the same positions.
        """
        await self._look_for_partitions()
        self._ticks += 1
        if not self._positions:
            return [], False
        request = self._asked.request(dict(self._positions), SHOWN_MAX, TICK_S)
        scan = await self._cluster.scan(request)
        progress = scan.progress
        self._positions.update(progress.positions)
        skipped = progress.stopped in ("limit", "read", "seconds", "bytes")
        if skipped:
            await self._skip()
        return [MessageRow(one, row_preview(one, self._asked)) for one in reversed(scan.messages())], skipped

    async def _look_for_partitions(self) -> None:
        if self._positions is not None and self._ticks % PARTITIONS_TICKS:
            return
        rows = await self._cluster.partitions(self._asked.topic)
        if self._positions is None:
            self._positions = {row.partition: row.end for row in rows}
        for row in rows:
            at = self._positions.setdefault(row.partition, row.start)
            if not row.start <= at <= row.end:  # retention was faster, or the partition is a new one
                self._positions[row.partition] = row.start if at < row.start else row.end

    async def _skip(self) -> None:
        """Go to the end: who looks on wants what is new."""
        rows = await self._cluster.partitions(self._asked.topic)
        assert self._positions is not None
        for row in rows:
            self._positions[row.partition] = max(row.end, self._positions.get(row.partition, 0))
