"""Reads a byte range of a partition as runs of whole frames.

The bytes arrive in slices (``slices``)::

    offset     start                          horizon
    delivered  ──────────┤ position
    received   ────────────────┤ end of the slices

A partial frame at the end of a slice is kept until the rest arrives; a frame longer than a slice is assembled the same
way. ``horizon`` is the range's end, or the end of the frame that starts before it.

A run's bytes are not copied between the network and the consumer of the run, except in a frame that two slices share.
A decoder takes them from a ``RangeReader`` and reports how many it used, so that frames are walked once; ``lend_range``
and ``read_range`` walk their lengths and yield whole frames.

After a lost connection, everything not received is requested again from the end of the slices on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

from metaq.backends.metaq.fetch import GROUP, AtEnd, Moved, Run
from metaq.backends.metaq.session import OUTSTANDING_MAX, REPLY_BYTES_MAX, Session
from metaq.backends.metaq.slices import LentRun, SlicedPartition, Slices
from metaq.errors import CorruptFrame, DataMissing, MetaqError, OffsetMoved
from metaq.formats.frames import HEADER_BYTES, frame_bytes, whole_bytes
from metaq.model import Buffer, OffsetRange
from metaq.net.retry import Attempts, RetryPolicy

FRAME_BYTES_MAX: Final = 128 << 20
"""Longest valid frame; a header with a greater length is treated as damage."""


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

    ``offset_range.start`` must be a frame's first byte (or the readable end). ``fetch_bytes`` are requested at a time,
    and ``prefetch`` (>= 1) requests are in flight; so up to their product is in memory, and one more frame. ``measure``
    returns the length of the whole frames at the front of a buffer; pass a compiled one for speed. After a connection
    failure the same ``session`` is reconnected, up to ``retries`` times in a row, with a pause of ``retry_interval_s``
    that doubles; no byte is skipped or repeated.

    Raises:
        OffsetMoved: The bytes were deleted (retention), or the partition was created again. Earlier runs were yielded.
        DataMissing: The partition ends before ``offset_range.end``.
        CorruptFrame: A length that no frame has. Earlier frames were yielded. The caller verifies checksums.
        BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError: As ``fetch``, when retrying did not help.
        ValueError: A parameter is out of its range; nothing was requested.
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
    """Yield runs as ``read_range`` does, without copies: a run is only valid until the next one is requested."""
    reader = RangeReader(
        session, SlicedPartition(topic, partition_index, group), offset_range, fetch_bytes, prefetch,
        policy=RetryPolicy(retries, retry_interval_s),
    )  # fmt: skip
    return _whole_runs(reader, measure)


def _whole_runs(reader: RangeReader, measure: Callable[[Buffer], int]) -> Generator[LentRun, None, None]:
    with closing(reader):
        while (run := reader.next_run()) is not None:
            try:
                count = len(run.data) if reader.completed else measure(run.data)
            except CorruptFrame as error:
                count = error.offset  # the frames before it are intact; its header is reported next
            if count:
                yield LentRun(run.offset, run.data[:count])
            reader.took(count)


class RangeReader:
    """Returns the bytes of a range as they arrive; the caller reports how many of them are whole frames.

    A partial frame at the end of a run is completed by the reader and returned as the next run. Parameters and errors:
    as ``read_range``.
    """

    def __init__(
        self,
        session: Session,
        source: SlicedPartition,
        offset_range: OffsetRange,
        fetch_bytes: int = 1 << 20,
        prefetch: int = 2,
        *,
        policy: RetryPolicy,
    ) -> None:
        if not 1 <= fetch_bytes <= REPLY_BYTES_MAX:
            raise ValueError(f"fetch_bytes={fetch_bytes}: expected 1..{REPLY_BYTES_MAX}")
        if not 1 <= prefetch <= OUTSTANDING_MAX:
            raise ValueError(f"prefetch={prefetch}: expected 1..{OUTSTANDING_MAX}")
        self._session, self._source, self._attempts = session, source, Attempts(policy, session.clock)
        self._slices = Slices(session, source, offset_range.start, fetch_bytes, prefetch)
        self._end = self._horizon = offset_range.end
        self._position = offset_range.start
        self._begun = bytearray()  # the beginning of the frame at ``position``
        self._rest: memoryview | None = None  # unused rest of the last slice, in ``_buffer``
        self._buffer = memoryview(b"")

    def next_run(self) -> LentRun | None:
        """Return the received bytes, beginning with a frame; ``None`` after the end of the range.

        They are valid until the next call. Call ``took`` in between.
        """
        while self._rest is None:
            if self._position >= self._end:
                return None
            if self._begun:
                self._extend_horizon()
            self._buffer, data = self._next_bytes()
            at = self._complete_begun(data) if self._begun else 0
            if at is None:
                self._slices.give_back(self._buffer)
            else:
                self._rest = data[at:]
        self._slices.ask_ahead(self._horizon)  # send requests while the caller works on the run
        return LentRun(self._position, memoryview(self._begun) if self._begun else self._rest)

    @property
    def completed(self) -> bool:
        """Whether the run is a single frame that was assembled from several slices."""
        return bool(self._begun)

    def took(self, count: int) -> None:
        """Mark the first ``count`` bytes of the run, its whole frames, as consumed."""
        assert self._rest is not None  # there is a run
        self._position += count
        if self._begun:  # the run was one assembled frame
            assert count == len(self._begun)
            self._begun = bytearray()
        else:
            self._begun += self._rest[count:]
            self._rest = self._rest[:0]
        if not self._rest:
            self._rest = None
            self._slices.give_back(self._buffer)

    def close(self) -> None:
        """Drop the requests in flight."""
        self._slices.abandon()

    def _extend_horizon(self) -> None:
        """Extend the horizon to the end of the partial frame."""
        self._horizon = max(self._end, self._position + (self._begun_frame_bytes() or HEADER_BYTES))

    def _begun_frame_bytes(self) -> int | None:
        """Return the length of the partial frame, once its header has arrived."""
        if len(self._begun) < HEADER_BYTES:
            return None
        size = frame_bytes(self._begun)
        if not 0 <= size - HEADER_BYTES <= FRAME_BYTES_MAX:
            raise self._corrupt(f"body length {size - HEADER_BYTES}, expected 0..{FRAME_BYTES_MAX}")
        return size

    def _complete_begun(self, data: memoryview) -> int | None:
        """Append the front of ``data`` to the partial frame; return how much was used, ``None`` if the frame is not
        complete.
        """
        taken = max(0, HEADER_BYTES - len(self._begun))
        self._begun += data[:taken]
        frame_bytes = self._begun_frame_bytes()
        if frame_bytes is None:
            return None
        missing = frame_bytes - len(self._begun)
        self._begun += data[taken : taken + missing]
        return taken + missing if len(self._begun) == frame_bytes else None

    def _next_bytes(self) -> tuple[memoryview, memoryview]:
        """Return a buffer and the received bytes in it, reconnecting as often as the policy allows."""
        while True:
            try:
                self._slices.ask(self._horizon)
                buffer, outcome = self._slices.collect()
            except MetaqError as error:
                self._slices.abandon()
                self._attempts.recover(self._session, error)
                continue
            self._attempts.progressed()
            match outcome:
                case LentRun(_, data):
                    return buffer, data
                case Moved(offset):
                    raise OffsetMoved(self._where, self._position, offset)
                case AtEnd(offset, text) if offset < self._end:
                    raise DataMissing(self._where, offset, self._end, text)
                case AtEnd():
                    raise self._corrupt("its length reaches past the end of the partition")

    @property
    def _where(self) -> str:
        return f"{self._source.topic} partition {self._source.index} of broker {self._session.address}"

    def _corrupt(self, reason: str) -> CorruptFrame:
        return CorruptFrame(self._where, self._position, reason)
