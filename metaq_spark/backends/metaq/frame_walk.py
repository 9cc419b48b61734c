"""Counting messages at a broker that cannot: following frame headers by gets.

Small frames come in bulk, in windows that grow; behind a large body only the next header is asked for.
"""

from __future__ import annotations

import struct
from typing import Final

from metaq.backends.metaq.fetch import Moved, Run, fetch
from metaq.backends.metaq.session import Session
from metaq.errors import CorruptFrame
from metaq.formats.frames import HEADER_BYTES
from metaq.model import OffsetRange
from metaq_spark.source.backend import Skipped

_WINDOW_BYTES_START: Final = 16 << 10
_WINDOW_BYTES_MAX: Final = 1 << 20
_WINDOW_FACTOR: Final = 4
_LARGE_BODY_BYTES: Final = 64 << 10
_LENGTH: Final = struct.Struct(">i")


def skip_messages(session: Session, topic: str, partition_index: int, span: OffsetRange, count: int) -> Skipped:
    """The boundary behind up to ``count`` (>= 1) messages from the start of the non-empty ``span``; see ``Skip``.

    Raises:
        CorruptFrame: The walk met a negative length.
        BrokerError: The broker refused.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    at, counted, window_bytes = span.start, 0, _WINDOW_BYTES_START
    while at < span.end and counted < count:
        outcome = fetch(session, topic, partition_index, at, window_bytes)
        if isinstance(outcome, Moved) and outcome.offset > at:  # removed meanwhile
            at, counted = outcome.offset, counted + (at == span.start)
            continue
        if not isinstance(outcome, Run) or len(outcome.data) < HEADER_BYTES:
            break  # the log ends early: what is missing is for the task to tell
        at, followed, length = _follow(outcome, span.end, count - counted, f"{topic} partition {partition_index}")
        counted += followed
        window_bytes = _next_window(window_bytes, length)
    return Skipped(min(at, span.end) if at > span.start else span.end, max(1, counted))


def _next_window(window_bytes: int, body_bytes: int) -> int:
    if body_bytes >= _LARGE_BODY_BYTES:
        return HEADER_BYTES
    return min(_WINDOW_BYTES_MAX, max(_WINDOW_BYTES_START, window_bytes * _WINDOW_FACTOR))


def _follow(run: Run, end: int, count: int, where: str) -> tuple[int, int, int]:
    """Where the headers in ``run`` lead, over how many messages, and the length of the last body."""
    at, counted, length = run.offset, 0, 0
    while at < end and counted < count and (place := at - run.offset) + HEADER_BYTES <= len(run.data):
        length = _LENGTH.unpack_from(run.data, place)[0]
        if length < 0:
            raise CorruptFrame(where, at, f"body length {length}")
        at, counted = at + HEADER_BYTES + length, counted + 1
    return at, counted, length
