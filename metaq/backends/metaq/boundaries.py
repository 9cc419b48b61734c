"""Frame boundaries: the boundary at or below an offset, the first message at or after a time.

A broker with the extension looks it up in its index. A Java broker knows only where its segments start; from there, or
from a boundary that the caller knows, this walks frame headers with gets. Small frames are read in bulk, in growing
windows; after a large frame only the next header is requested, so large bodies are not transferred.
"""

from __future__ import annotations

from typing import Final

from metaq.backends.metaq.fetch import Run, fetch
from metaq.backends.metaq.positions import lookup
from metaq.backends.metaq.session import Session
from metaq.errors import ExtensionMissing
from metaq.formats.frames import HEADER_BYTES, pass_whole, require_length
from metaq.protocols.text.extensions import EXT_BOUNDARY, EXT_TIMESTAMP

WINDOW_BYTES_MAX: Final = 1 << 20
_WINDOW_BYTES_START: Final = 16 << 10
_WINDOW_FACTOR: Final = 4
_LARGE_FRAME_BYTES: Final = 64 << 10  # transferring this takes about as long as one round trip


def frame_boundary(session: Session, topic: str, partition_index: int, offset: int, floor: int | None = None) -> int:
    """Return the greatest frame boundary at or below ``offset``, limited to the partition's stored range.

    ``floor`` is a boundary at or below ``offset`` that the caller knows (a start offset, an earlier answer). It saves
    work with a broker without the extension, where the bytes between floor and ``offset`` are read once if frames are
    small; without it the walk begins at the segment's start, up to a whole segment away.

    Raises:
        CorruptFrame: The walk met a negative length.
        BrokerError: 404 if the partition has no store, or another refusal.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    if EXT_BOUNDARY in session.extensions:
        return lookup(session, topic, partition_index, offset, "boundary")
    segment_start = lookup(session, topic, partition_index, offset, "segment")
    if segment_start >= offset:  # already a boundary, below the first segment, or an empty partition
        return segment_start
    start = segment_start if floor is None or floor > offset else max(segment_start, floor)
    return _Walk(session, topic, partition_index).last_boundary(start, offset)


def finds_boundaries(session: Session) -> bool:
    """Whether the broker finds a boundary itself, in one request."""
    return EXT_BOUNDARY in session.extensions


def first_at_time(session: Session, topic: str, partition_index: int, time_ms: int) -> int:
    """Return the offset of the first message at or after ``time_ms`` (since 1970, broker's clock), else the readable
    end.

    Raises:
        ExtensionMissing: The broker stores no times (a Java broker).
        BrokerError: 404 if the partition has no store, or another refusal.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    if EXT_TIMESTAMP not in session.extensions:
        raise ExtensionMissing(session.address, EXT_TIMESTAMP, "starting at a time")
    return lookup(session, topic, partition_index, time_ms, "timestamp")


class _Walk:
    """Follows frame headers through a partition."""

    def __init__(self, session: Session, topic: str, partition_index: int) -> None:
        self._session, self._topic, self._index = session, topic, partition_index
        self._window_bytes = _WINDOW_BYTES_START

    def last_boundary(self, start: int, offset: int) -> int:
        """Return the last boundary in ``[start, offset]``; ``start`` must be one."""
        position = start
        while position < offset:
            wanted = max(HEADER_BYTES, min(self._window_bytes, offset - position))
            outcome = fetch(self._session, self._topic, self._index, position, wanted)
            if not isinstance(outcome, Run):
                break  # the readable end, or deleted meanwhile: later boundaries are unknown
            reached = self._follow(outcome, offset)
            if reached == position:
                break
            position = reached
        return position

    def _follow(self, run: Run, offset: int) -> int:
        """The last boundary at or below ``offset`` that the headers in ``run`` lead to."""
        at, passed = pass_whole(run.data, 0, offset - run.offset)
        where = f"{self._topic} partition {self._index} of broker {self._session.address}"
        require_length(run.data, at, run.offset, where)
        self._adapt(at // max(1, passed))
        return run.offset + at

    def _adapt(self, frame_bytes: int) -> None:
        if frame_bytes >= _LARGE_FRAME_BYTES:
            self._window_bytes = HEADER_BYTES
        else:
            self._window_bytes = min(WINDOW_BYTES_MAX, max(_WINDOW_BYTES_START, self._window_bytes * _WINDOW_FACTOR))
