"""Frame pulls: messages of a queue as the bundled broker stores them (31002).

A response has whole frames and their queue offsets. After any other response, use an ordinary pull, whose response
explains the reason.

Source: docs/remoting-protocol.md, "Frames instead of records".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaq.backends.rocketmq.reads.pull_window import RequestWindow
from metaq.backends.rocketmq.reads.pulls import describe
from metaq.backends.rocketmq.session import Session
from metaq.formats.frames import pass_whole
from metaq.formats.rocketmq.hosts import IPV4_BYTES, IPV6_BYTES
from metaq.formats.stored_records import FrameRun
from metaq.model import Buffer
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.pulls import PullFrames, PullFramesResponse

MESSAGES_MAX: Final = 1 << 20
"""Limit on messages that are requested at a time."""

BODY_BYTES: Final = 1 << 20
"""Approximate bytes of frames in a response: they should still be in the processor's cache when they are decoded."""

_MESSAGES_START: Final = 256

Measure = Callable[[Buffer, int], tuple[int, int]]
"""Counts the whole frames at the front of a buffer, up to a maximum; returns their number and bytes."""


def measure_frames(data: Buffer, frames_max: int) -> tuple[int, int]:
    """Count whole frames; see ``Measure``. Lengths only are looked at."""
    size, count = pass_whole(data, frames_max=frames_max)
    return count, size


@dataclass(frozen=True, slots=True)
class FrameQueue:
    """The queue that is read, as its broker knows it, and the group that reads it."""

    topic: str
    broker_name: str
    queue_id: int
    group: str

    def pull(self, offset: int, messages_max: int, bytes_max: int) -> RemotingCommand:
        """Return the request for up to ``messages_max`` messages from ``offset`` on."""
        header = PullFrames(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=self.queue_id,
            queue_offset=offset,
            max_msg_nums=messages_max,
            max_msg_bytes=bytes_max,
        )
        return to_request(header, broker_name=self.broker_name)


def read_frames(session: Session, command: RemotingCommand, response: RemotingCommand) -> FrameRun | None:
    """Return the frames in ``response``; ``None``: no messages there at the moment.

    Raises:
        RequestRefused, AccessDenied: The broker refused the request, or does not know it.
        ProtocolError: The response is not valid. The session is closed.
    """
    if response.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
        return None
    if response.code != ResponseCode.SUCCESS:
        raise session.refusal(response, command, describe(command))
    fields = session.read(response, PullFramesResponse)
    try:
        if not int(command.ext["queueOffset"]) <= fields.begin_offset < fields.next_begin_offset:
            raise ValueError(f"offsets {fields.begin_offset} to {fields.next_begin_offset}")
        host = bytes.fromhex(fields.store_host)
        if len(host) not in (IPV4_BYTES, IPV6_BYTES):
            raise ValueError(f"a store host of {len(host)} bytes")
    except ValueError as fault:
        raise session.protocol_error(f"{describe(command)} was answered with {fault}") from None
    return FrameRun(
        fields.begin_offset,
        fields.next_begin_offset,
        response.body,
        fields.physical_offset,
        fields.store_timestamp,
        host,
    )


class FrameWindow(RequestWindow):
    """Requests for the frames of ``queue``. The number of messages per request is adapted to their size."""

    def __init__(self, queue: FrameQueue, position: int, in_flight: int, bytes_max: int) -> None:
        super().__init__(self._pull, position, MESSAGES_MAX, in_flight, bytes_max, _MESSAGES_START, bytes_max // 2)
        self._queue = queue

    def collect(self, session: Session) -> FrameRun | None:
        """Wait for the response to the first request. Raises as ``read_frames`` and ``Session.wait``."""
        first, response = self.take(session)
        found = read_frames(session, first.command, response)
        if found is not None:
            self.note_bytes(len(found.data))
            messages = (found.end - found.start) * BODY_BYTES // max(1, len(found.data))
            self._stride = max(1, min(MESSAGES_MAX, messages))
        return found

    def _pull(self, offset: int, count: int) -> RemotingCommand:
        return self._queue.pull(offset, count, 2 * BODY_BYTES)
