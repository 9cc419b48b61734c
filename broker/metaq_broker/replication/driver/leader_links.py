"""The master's connection to the other member: opens it again whenever it ends, and sends messages and runs in order.

Each connection has a queue: a run is read from the disk when its turn comes, in pieces of ``RUN_BYTES``. At most
``WINDOW_BYTES`` are sent before the other member reports that it has stored them. If the queue is empty, a run is sent
at once, before this member has synced it, so that both disks work at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from metaq.model import Address
from metaq_broker.background import begin_work
from metaq_broker.log.streams.stream import PairStreams, StreamRefused
from metaq_broker.operate.config.replication import PairConfig
from metaq_broker.replication.driver.links import LinkTimes, OpenLink, OutgoingLink
from metaq_broker.replication.driver.wire import MessageUnreadable, decode_message, encode_message
from metaq_broker.replication.pair import events
from metaq_broker.replication.pair.actions import SendRun
from metaq_broker.replication.pair.events import PairEvent
from metaq_broker.replication.pair.messages import PairMessage, RunStored, StreamRun
from metaq_broker.replication.peer import PeerLost, PeerRefused

_LOG: Final = logging.getLogger(__name__)

RUN_BYTES: Final = 1 << 20
"""Approximate size of a run; one that starts with a longer record is longer."""

WINDOW_BYTES: Final = 16 << 20

RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 2.0
"""First and longest pause between two attempts to connect; it grows while connections end at once."""

LASTS_S: Final = 2.0
"""After a connection that lasted longer than this, the pause is the first one again."""

REFUSED_S: Final = 0.5
"""Longest wait for an answer to the question whether an address refuses connections."""

PINGS: Final = 4
"""How many pings are sent within ``answerTimeoutMs``."""


@dataclass(slots=True)
class _Link:
    """``stored`` is set when the member has stored a run; ``unstored_bytes`` were sent and are not stored yet.

    ``is_sending``: the sender is in the middle of an item, and may wait.
    """

    number: int
    outgoing: OutgoingLink | None = None
    queue: asyncio.Queue[PairMessage | SendRun] = field(default_factory=asyncio.Queue)
    under_way: deque[tuple[str, int, int]] = field(default_factory=deque)
    unstored_bytes: int = 0
    progressed_s: float = 0.0
    stored: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    sender: asyncio.Task[None] | None = None
    is_sending: bool = False


class LeaderLinks:
    """``feed`` takes the events; ``next_link`` numbers connections."""

    def __init__(
        self,
        config: PairConfig,
        streams: PairStreams,
        open_link: OpenLink,
        feed: Callable[[PairEvent], None],
        next_link: Callable[[], int],
    ) -> None:
        self._config, self._streams, self._open_link = config, streams, open_link
        self._feed, self._next_link = feed, next_link
        answer_s = config.timeout_ms / 1000
        self._times = LinkTimes(answer_s, answer_s / PINGS)
        self._link: _Link | None = None
        self._task: asyncio.Task[None] | None = None
        self.trouble: str | None = None
        """Why there is no connection to the other member; ``None`` if there is one, or none is needed."""

    def start(self) -> None:
        """Connect to the other member from now on, whenever there is no connection."""
        self._task = begin_work(self._stay_connected(), "pair: connection")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._link is not None:
            self._end(self._link)

    async def is_refused(self, address: Address) -> bool:
        """Return whether ``address`` refuses two connections in a row."""
        for _ in range(2):
            try:
                async with asyncio.timeout(REFUSED_S):
                    _, writer = await asyncio.open_connection(address.host, address.port)
            except ConnectionRefusedError:
                continue
            except (OSError, TimeoutError):
                return False
            writer.transport.abort()
            return False
        return True

    async def _stay_connected(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), RETRY_S
        while True:
            link, began_s = _Link(self._next_link()), loop.time()
            try:
                link.outgoing = await self._open_link(
                    self._config.other,
                    self._times,
                    lambda content, link=link: self._received(link, content),  # type: ignore[misc]
                    lambda reason, link=link: self._lost(link, reason),  # type: ignore[misc]
                )
            except (PeerLost, PeerRefused) as error:
                self._note_trouble(str(error))
            except Exception as defect:  # it must not end the pair forever
                self._note_trouble(_defect(defect))
            else:
                self.trouble, self._link = None, link
                _LOG.info("connected to the other member", extra={"fields": {"other": self._config.other}})
                link.sender = asyncio.get_running_loop().create_task(self._send_queued(link))
                self._feed(events.LinkUp(link.number))
                await self._watch(link)
                pause_s = RETRY_S if loop.time() - began_s > LASTS_S else min(pause_s * 1.5, RETRY_S_MAX)
            await asyncio.sleep(pause_s)

    async def _watch(self, link: _Link) -> None:
        """Return when a link is lost; give it up if a run takes too long."""
        loop = asyncio.get_running_loop()
        while not link.lost.is_set():
            try:
                async with asyncio.timeout(self._times.ping_s):
                    await link.lost.wait()
            except TimeoutError:
                if link.under_way and loop.time() - link.progressed_s > self._times.answer_s:
                    self._lost(link, f"no run was stored within {self._times.answer_s:g} s")

    def _note_trouble(self, reason: str) -> None:
        if reason != self.trouble:
            _LOG.warning("no connection to the other member", extra={"fields": {"reason": reason}})
        self.trouble = reason

    # ---- what arrives

    def _received(self, link: _Link, content: bytes) -> None:
        try:
            message = decode_message(content)
        except MessageUnreadable as error:
            self._lost(link, str(error))
            return
        if isinstance(message, RunStored):
            self._note_stored(link, message)
        self._feed(events.MessageArrived(link.number, message))

    def _note_stored(self, link: _Link, message: RunStored) -> None:
        link.progressed_s = asyncio.get_running_loop().time()
        left = deque[tuple[str, int, int]]()
        for stream, end, size in link.under_way:
            if stream == message.stream and end <= message.end:
                link.unstored_bytes -= size
            else:
                left.append((stream, end, size))
        link.under_way = left
        link.stored.set()

    def _lost(self, link: _Link, reason: str) -> None:
        if link.lost.is_set():
            return
        self._end(link)
        self._note_trouble(reason)
        self._feed(events.LinkDown(link.number, reason))

    def _end(self, link: _Link) -> None:
        link.lost.set()
        if link.sender is not None:
            link.sender.cancel()
        if link.outgoing is not None:
            link.outgoing.close()
        if self._link is link:
            self._link = None

    # ---- what is sent

    def send(self, number: int, message: PairMessage) -> None:
        if self._link is not None and self._link.number == number:
            self._link.queue.put_nowait(message)

    def send_run(self, action: SendRun) -> None:
        link = self._link
        if link is None or link.number != action.link:
            return
        outgoing = link.outgoing
        if outgoing is not None and not link.is_sending and link.queue.empty() and link.unstored_bytes < WINDOW_BYTES:
            at = None
            with self._ending_with(link):
                at = self._send_run_now(link, outgoing, action)
            if at is None or at >= action.end:
                return
            action = replace(action, offset=at)
        link.queue.put_nowait(action)

    def close_link(self, number: int) -> None:
        """Close a connection, without ``LinkDown``."""
        if self._link is not None and self._link.number == number:
            self._end(self._link)

    @contextlib.contextmanager
    def _ending_with(self, link: _Link) -> Iterator[None]:
        """Give up a connection on which something was not sent: the other member would wait for it."""
        try:
            yield
        except StreamRefused as refused:
            self._lost(link, str(refused))
        except Exception as defect:
            self._lost(link, _defect(defect))

    async def _send_queued(self, link: _Link) -> None:
        with self._ending_with(link):
            await self._send_all(link)

    async def _send_all(self, link: _Link) -> None:
        assert link.outgoing is not None  # it is connected
        while True:
            item = await link.queue.get()
            link.is_sending = True
            if isinstance(item, SendRun):
                await self._send_runs(link, link.outgoing, item)
            else:
                link.outgoing.write(encode_message(item))
                await link.outgoing.drain()
            link.is_sending = False

    async def _send_runs(self, link: _Link, outgoing: OutgoingLink, action: SendRun) -> None:
        at: int | None = action.offset
        while at is not None and at < action.end:
            at = self._send_run_now(link, outgoing, replace(action, offset=at))
            await outgoing.drain()
            while link.unstored_bytes > WINDOW_BYTES:
                link.stored.clear()
                await link.stored.wait()

    def _send_run_now(self, link: _Link, outgoing: OutgoingLink, action: SendRun) -> int | None:
        """Send the first ``RUN_BYTES`` of a run; return its end; ``None``: the stream is gone.

        Raises:
            StreamRefused: It cannot be read.
        """
        stream = self._streams.get(action.stream)
        if stream is None:
            return None
        run = stream.read(action.offset, action.end, RUN_BYTES)
        outgoing.write(encode_message(StreamRun(action.epoch, action.stream, action.offset, run.end, run)))
        if not link.under_way:
            link.progressed_s = asyncio.get_running_loop().time()
        link.under_way.append((action.stream, run.end, len(run.data)))
        link.unstored_bytes += len(run.data)
        return run.end


def _defect(defect: Exception) -> str:
    """Log a defect of the program, and return what it is."""
    _LOG.exception("bug in the connection to the other member")
    return f"{type(defect).__name__}: {defect}"
