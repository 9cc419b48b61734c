"""Reads a byte range of a partition as runs of whole frames, with the next requests under way while the caller works.

A get is a slice of bytes, so requests for neighbouring slices are posted before earlier ones are answered, and the
slices are put together in order::

    offset     start                          horizon
    delivered  ──────────┤ position
    received   ────────────────┤ received_end
    asked                      ├── get ──┼── get ──┤

A reply may be short (end of a segment, ``maxTransferSize``): the gap it leaves is asked for next, the slices behind it
stay valid. What follows the last whole frame is held until the rest of that frame has come; a frame longer than
any reply comes together the same way. ``horizon`` is the range's end, or the end of the frame that starts before it.

When the connection is lost, everything not received is asked for again from ``received_end`` on a new connection.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from metaq.client.fetch import GROUP, AtEnd, Moved, Run, read_outcome
from metaq.client.retry import Attempts, RetryPolicy
from metaq.client.session import OUTSTANDING_MAX, REPLY_BYTES_MAX, Session
from metaq.errors import CorruptFrame, DataMissing, MetaqError, OffsetMoved
from metaq.model import Buffer, OffsetRange
from metaq.wire.text.commands import Get
from metaq.wire.text.frames import HEADER_BYTES, whole_bytes

FRAME_BYTES_MAX: Final = 128 << 20
"""Longest frame that is believed; a header that says more is taken for damage."""

_LENGTH: Final = struct.Struct(">i")
_LEARNED_BYTES_MIN: Final = 4096


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
) -> Iterator[Run]:
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
        self._asked: deque[tuple[int, Get]] = deque()
        self._held: list[bytes] = []  # the begun frame at position; the first piece holds its header, if it has come
        self._frame_bytes: int | None = None  # length of the begun frame, once its header has come
        self._short_bytes = 0

    def runs(self) -> Iterator[Run]:
        try:
            while self._position < self._end:
                self._look_at_begun_frame()
                run = self._take_whole_frames(self._next_bytes())
                if run.data:
                    self._ask_ahead()
                    yield run
        finally:
            self._abandon()

    def _look_at_begun_frame(self) -> None:
        held_bytes = self._received_end - self._position
        self._frame_bytes = None
        if held_bytes >= HEADER_BYTES:
            length: int = _LENGTH.unpack_from(self._held[0])[0]
            if not 0 <= length <= FRAME_BYTES_MAX:
                raise self._corrupt(f"body length {length}, expected 0..{FRAME_BYTES_MAX}")
            self._frame_bytes = HEADER_BYTES + length
        if held_bytes:
            self._horizon = max(self._end, self._position + (self._frame_bytes or HEADER_BYTES))

    def _take_whole_frames(self, data: bytes) -> Run:
        """Add ``data`` to what is held, take the whole frames off the front and hold the rest."""
        if self._held and self._frame_bytes is None:  # less than a header is held
            data = self._held.pop() + data
        front = 0
        if self._frame_bytes is not None:
            front = self._position + self._frame_bytes - (self._received_end - len(data))
            if front > len(data):
                self._held.append(data)
                return Run(self._position, b"")
        whole = front + self._measured(memoryview(data)[front:])
        run = Run(self._position, b"".join((*self._held, memoryview(data)[:whole])) if self._held else data[:whole])
        self._held = [data[whole:]] if whole < len(data) else []
        self._position = run.end
        return run

    def _measured(self, data: memoryview) -> int:
        try:
            return self._measure(data)
        except CorruptFrame as error:
            return error.offset  # the frames before it are fine; its header is looked at, and named, next

    def _next_bytes(self) -> bytes:
        """The bytes at ``received_end``, over as many connections as that takes."""
        while True:
            try:
                self._ask()
                outcome = self._collect()
            except MetaqError as error:
                self._abandon()
                self._attempts.recover(self._session, error)
                continue
            self._attempts.progressed()
            match outcome:
                case Run(_, data):
                    return data
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
            gap_bytes = self._asked[0][1].offset - next_offset
            if gap_bytes:
                self._asked.appendleft(self._post(next_offset, min(gap_bytes, self._fetch_bytes)))
            last = self._asked[-1][1]
            next_offset = last.offset + last.max_bytes
        while len(self._asked) < self._prefetch and next_offset < self._horizon:
            self._asked.append(self._post(next_offset, min(self._fetch_bytes, self._horizon - next_offset)))
            next_offset += self._asked[-1][1].max_bytes

    def _post(self, offset: int, max_bytes: int) -> tuple[int, Get]:
        command = self._source.get(offset, max_bytes)
        return self._session.post(command), command

    def _ask_ahead(self) -> None:
        """Ask before the caller works on a run. A failure is met again, and dealt with, when its bytes are needed."""
        try:
            self._ask()
        except MetaqError:
            self._abandon()

    def _collect(self) -> Run | AtEnd | Moved:
        opaque, command = self._asked[0]
        reply = self._session.wait(opaque)
        self._asked.popleft()
        outcome = read_outcome(self._session, command, reply)
        if isinstance(outcome, Run):
            self._received_end = outcome.end
            if len(outcome.data) < command.max_bytes:
                self._learn_from_short(len(outcome.data))
        return outcome

    def _learn_from_short(self, reply_bytes: int) -> None:
        """Two short replies of one length: that is the most this broker sends, so ask for no more than that."""
        if reply_bytes == self._short_bytes:
            self._fetch_bytes = min(self._fetch_bytes, max(reply_bytes, _LEARNED_BYTES_MIN))
        self._short_bytes = reply_bytes

    def _abandon(self) -> None:
        for opaque, _ in self._asked:
            self._session.abandon(opaque)
        self._asked.clear()

    @property
    def _where(self) -> str:
        return f"{self._source.topic} partition {self._source.index} of broker {self._session.address}"

    def _corrupt(self, reason: str) -> CorruptFrame:
        return CorruptFrame(self._where, self._position, reason)
