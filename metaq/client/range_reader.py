"""Reads a byte range of a partition as runs of whole frames, with the next requests under way while the caller works.

A get is a slice of bytes, so requests for neighbouring slices are posted before earlier ones are answered, and the
slices are put together in order::

    offset     start                          horizon
    delivered  ──────────┤ position
    received   ────────────────┤ received_end
    asked                      ├── get ──┼── get ──┤

A reply may be short (end of a segment, ``maxTransferSize``): the gap it leaves is asked for next, the slices behind it
stay valid. What follows the last whole frame, a begun one, is held until the rest of it has come; a frame longer than
any reply comes together the same way. ``horizon`` is the range's end, or the end of the frame that starts before it.

Replies are received into rooms of this reader, one for each request under way, which are used again and again: the
bytes of a run are not copied on their way from the network to who takes the run (``lend_range``), except those of a
frame that two replies share.

When the connection is lost, everything not received is asked for again from ``received_end`` on a new connection.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, NamedTuple

from metaq.client.fetch import GROUP, AtEnd, Moved, Run, read_outcome
from metaq.client.retry import Attempts, RetryPolicy
from metaq.client.session import OUTSTANDING_MAX, REPLY_BYTES_MAX, Session
from metaq.errors import CorruptFrame, DataMissing, MetaqError, OffsetMoved
from metaq.model import Buffer, OffsetRange
from metaq.wire.text.commands import Filled, Get, Reply
from metaq.wire.text.frames import HEADER_BYTES, whole_bytes

FRAME_BYTES_MAX: Final = 128 << 20
"""Longest frame that is believed; a header that says more is taken for damage."""

_LENGTH: Final = struct.Struct(">i")
_LEARNED_BYTES_MIN: Final = 4096


class LentRun(NamedTuple):
    """A run whose bytes are only there until the next one is asked for."""

    offset: int
    data: memoryview

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.offset + len(self.data)


def read_range(
    session: Session,
    topic: str,
    partition_index: int,
    offset_range: OffsetRange,
    fetch_bytes: int = 1 << 20,
    prefetch: int = 2,
    *,
    retries: int = 5,
    retry_interval_s: float = 0.2,
    group: str = GROUP,
    measure: Callable[[Buffer], int] = whole_bytes,
) -> Generator[Run, None, None]:
    """Yield every frame whose first byte is in ``offset_range``, in order, as runs of whole frames without gaps.

    ``offset_range.start`` must be a frame's first byte (or the readable end). ``fetch_bytes`` is asked for at a time,
    ``prefetch`` (>= 1) such requests are under way at once; so up to their product waits in memory, and one frame more.
    ``measure`` gives the length of the whole frames at the front of a buffer; pass a compiled one for speed.
    After a connection failure the same ``session`` is connected again, up to ``retries`` times in a row, pausing
    ``retry_interval_s`` and then doubling; no byte is skipped or repeated.

    Raises:
        OffsetMoved: The bytes are gone (retention), or the partition is a new one. Runs before that were yielded.
        DataMissing: The partition ends before ``offset_range.end``.
        CorruptFrame: A length that no frame has. Frames before it were yielded. Checksums are left to the caller.
        BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError: As ``fetch``, when retrying did not help.
        ValueError: A parameter is out of its range; nothing was asked.
    """
    lent = lend_range(
        session, topic, partition_index, offset_range, fetch_bytes, prefetch,
        retries=retries, retry_interval_s=retry_interval_s, group=group, measure=measure,
    )  # fmt: skip
    return _copied(lent)


def _copied(lent: Generator[LentRun, None, None]) -> Generator[Run, None, None]:
    try:
        for run in lent:
            yield Run(run.offset, bytes(run.data))
    finally:
        lent.close()


def lend_range(
    session: Session,
    topic: str,
    partition_index: int,
    offset_range: OffsetRange,
    fetch_bytes: int = 1 << 20,
    prefetch: int = 2,
    *,
    retries: int = 5,
    retry_interval_s: float = 0.2,
    group: str = GROUP,
    measure: Callable[[Buffer], int] = whole_bytes,
) -> Generator[LentRun, None, None]:
    """As ``read_range``, for who is done with each run before asking for the next: nothing is copied for him."""
    if not 1 <= fetch_bytes <= REPLY_BYTES_MAX:
        raise ValueError(f"fetch_bytes={fetch_bytes}: expected 1..{REPLY_BYTES_MAX}")
    if not 1 <= prefetch <= OUTSTANDING_MAX:
        raise ValueError(f"prefetch={prefetch}: expected 1..{OUTSTANDING_MAX}")
    attempts = Attempts(RetryPolicy(retries, retry_interval_s), session.clock)
    source = _Source(topic, partition_index, group)
    return _RangeReader(session, source, offset_range, fetch_bytes, prefetch, attempts, measure).runs()


@dataclass(frozen=True, slots=True)
class _Source:
    topic: str
    index: int
    group: str

    def get(self, offset: int, max_bytes: int) -> Get:
        return Get(self.topic, self.group, self.index, offset, max_bytes, 0)


class _Asked(NamedTuple):
    """A request under way, and where its bytes go."""

    opaque: int
    get: Get
    room: memoryview


class _RangeReader:
    """See the module."""

    def __init__(
        self,
        session: Session,
        source: _Source,
        offset_range: OffsetRange,
        fetch_bytes: int,
        prefetch: int,
        attempts: Attempts,
        measure: Callable[[Buffer], int],
    ) -> None:
        self._session, self._source, self._attempts, self._measure = session, source, attempts, measure
        self._fetch_bytes, self._prefetch = fetch_bytes, prefetch
        self._end = self._horizon = offset_range.end
        self._position = self._received_end = offset_range.start
        self._asked: deque[_Asked] = deque()
        self._spare_rooms: list[memoryview] = []
        self._begun = bytearray()  # the front of the frame at position
        self._short_bytes = 0

    def runs(self) -> Generator[LentRun, None, None]:
        try:
            while self._position < self._end:
                self._extend_horizon()
                room, data = self._next_bytes()
                at = self._complete_begun(data)
                if at is not None:
                    yield from self._take_begun()
                    yield from self._take_whole_frames(data[at:])
                self._spare_rooms.append(room)
        finally:
            self._abandon()

    def _extend_horizon(self) -> None:
        """Have all of the begun frame asked for."""
        if self._begun:
            self._horizon = max(self._end, self._position + (self._begun_frame_bytes() or HEADER_BYTES))

    def _begun_frame_bytes(self) -> int | None:
        """Length of the begun frame, once its header has come."""
        if len(self._begun) < HEADER_BYTES:
            return None
        length: int = _LENGTH.unpack_from(self._begun)[0]
        if not 0 <= length <= FRAME_BYTES_MAX:
            raise self._corrupt(f"body length {length}, expected 0..{FRAME_BYTES_MAX}")
        return HEADER_BYTES + length

    def _complete_begun(self, data: memoryview) -> int | None:
        """Add the front of ``data`` to the begun frame; how much that took, ``None`` if all and it was not enough."""
        if not self._begun:
            return 0
        taken = max(0, HEADER_BYTES - len(self._begun))
        self._begun += data[:taken]
        frame_bytes = self._begun_frame_bytes()
        if frame_bytes is None:
            return None
        missing = frame_bytes - len(self._begun)
        self._begun += data[taken : taken + missing]
        return taken + missing if len(self._begun) == frame_bytes else None

    def _take_begun(self) -> Generator[LentRun, None, None]:
        if self._begun:
            run = LentRun(self._position, memoryview(self._begun))
            self._position, self._begun = run.end, bytearray()
            self._ask_ahead()
            yield run

    def _take_whole_frames(self, data: memoryview) -> Generator[LentRun, None, None]:
        """The whole frames at the front of ``data``; the rest is held."""
        run = LentRun(self._position, data[: self._measured(data)])
        self._begun += data[len(run.data) :]
        self._position = run.end
        if run.data:
            self._ask_ahead()
            yield run

    def _measured(self, data: memoryview) -> int:
        try:
            return self._measure(data)
        except CorruptFrame as error:
            return error.offset  # the frames before it are fine; its header is looked at, and named, next

    def _next_bytes(self) -> tuple[memoryview, memoryview]:
        """A room and the bytes at ``received_end`` that are in it, over as many connections as that takes."""
        while True:
            try:
                self._ask()
                room, outcome = self._collect()
            except MetaqError as error:
                self._abandon()
                self._attempts.recover(self._session, error)
                continue
            self._attempts.progressed()
            match outcome:
                case LentRun(_, data):
                    return room, data
                case Moved(offset):
                    raise OffsetMoved(self._where, self._position, offset)
                case AtEnd(offset, text) if offset < self._end:
                    raise DataMissing(self._where, offset, self._end, text)
                case AtEnd():
                    raise self._corrupt("by its header it reaches past the end of the partition")

    def _ask(self) -> None:
        """Post requests: first for the gap that a short reply left, then ahead, up to the horizon."""
        next_offset = self._received_end
        if self._asked:
            gap_bytes = self._asked[0].get.offset - next_offset
            if gap_bytes:
                self._asked.appendleft(self._post(next_offset, min(gap_bytes, self._fetch_bytes)))
            last = self._asked[-1].get
            next_offset = last.offset + last.max_bytes
        while len(self._asked) < self._prefetch and next_offset < self._horizon:
            self._asked.append(self._post(next_offset, min(self._fetch_bytes, self._horizon - next_offset)))
            next_offset += self._asked[-1].get.max_bytes

    def _post(self, offset: int, max_bytes: int) -> _Asked:
        command, room = self._source.get(offset, max_bytes), self._room(max_bytes)
        return _Asked(self._session.post(command, room=room[:max_bytes]), command, room)

    def _room(self, byte_count: int) -> memoryview:
        """A spare room that is large enough, or a new one."""
        room = self._spare_rooms.pop() if self._spare_rooms else memoryview(b"")
        return room if len(room) >= byte_count else memoryview(bytearray(byte_count))

    def _ask_ahead(self) -> None:
        """Ask before the caller works on a run. A failure is met again, and dealt with, when its bytes are needed."""
        try:
            self._ask()
        except MetaqError:
            self._abandon()

    def _collect(self) -> tuple[memoryview, LentRun | AtEnd | Moved]:
        opaque, command, room = self._asked[0]
        reply = self._session.collect(opaque)
        self._asked.popleft()
        outcome = _outcome(self._session, command, room, reply)
        if isinstance(outcome, LentRun):
            self._received_end = outcome.end
            if len(outcome.data) < command.max_bytes:
                self._learn_from_short(len(outcome.data))
        return room, outcome

    def _learn_from_short(self, reply_bytes: int) -> None:
        """Two short replies of one length: that is the most this broker sends, so ask for no more than that."""
        if reply_bytes == self._short_bytes:
            self._fetch_bytes = min(self._fetch_bytes, max(reply_bytes, _LEARNED_BYTES_MIN))
        self._short_bytes = reply_bytes

    def _abandon(self) -> None:
        """Forget the requests under way, and their rooms with them: the session may still fill those."""
        for asked in self._asked:
            self._session.abandon(asked.opaque)
        self._asked.clear()

    @property
    def _where(self) -> str:
        return f"{self._source.topic} partition {self._source.index} of broker {self._session.address}"

    def _corrupt(self, reason: str) -> CorruptFrame:
        return CorruptFrame(self._where, self._position, reason)


def _outcome(session: Session, command: Get, room: memoryview, reply: Reply | Filled) -> LentRun | AtEnd | Moved:
    if isinstance(reply, Filled):
        return LentRun(command.offset, room[: reply.size])
    outcome = read_outcome(session, command, reply)
    return LentRun(outcome.offset, memoryview(outcome.data)) if isinstance(outcome, Run) else outcome
