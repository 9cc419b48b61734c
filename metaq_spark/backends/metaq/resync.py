"""Finds the next intact frame after a damaged one.

In this order:

1. at the offset given by the damaged frame's length, if an intact frame is there, or the range ends exactly there;
2. with the broker's help: it knows boundaries from its index, further on. From the nearest that is one, the frames
between
   are found backwards: those from which good frames lead exactly there. So a frame inside a payload is not mistaken for
   one;
3. otherwise the first place from which good frames lead to the end of what is looked at, or many of them follow each
   other. (A message that is damaged in its length and contains many messages gives those away as its own.)

If none is found, the rest of the range counts as damaged. The result depends only on the range's bytes, so a repeated
task finds the same.

Source: docs/log-format.md, "What is damage, and what is torn"; docs/protocol.md, "boundary".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from metaq.backends.metaq.fetch import Run, fetch
from metaq.backends.metaq.positions import lookup
from metaq.backends.metaq.range_reader import FRAME_BYTES_MAX
from metaq.backends.metaq.session import Session
from metaq.formats.checksum import checksum
from metaq.formats.frames import HEADER_BYTES, frame_bytes, header_at
from metaq.model import TopicPartition
from metaq.protocols.text.extensions import EXT_BOUNDARY

WINDOW_BYTES: Final = 8 << 20
"""Limit on bytes that are searched at a time."""

_STEP_BYTES: Final = 8 << 10  # two intervals of a broker's index
_STEP_FACTOR: Final = 4
_CHECKED_FACTOR: Final = 32  # limit on checksummed bytes, as a multiple of the searched bytes
_BODY_BYTES_SMALL: Final = 64 << 10
_CHAIN_LONG: Final = 16


def read_slice(session: Session, source: TopicPartition, offset: int, size: int) -> bytes:
    """Return up to ``size`` bytes from ``offset``, as far as the broker serves them.

    Raises:
        MetaqError: As ``fetch``.
    """
    task_ranges: list[bytes] = []
    while size > 0:
        outcome = fetch(session, source.topic, source.partition.index, offset, size)
        if not isinstance(outcome, Run):
            break
        task_ranges.append(outcome.data)
        offset, size = outcome.end, size - len(outcome.data)
    return b"".join(task_ranges)


def next_frame(session: Session, source: TopicPartition, damaged: int, end: int) -> int:
    """Offset of the first good frame after the damaged one at ``damaged``; ``end``, or more, if none is before it.

    Raises:
        MetaqError: As ``fetch``.
    """
    damaged_range = _DamagedRange(session, source, end)
    found = damaged_range.by_length(damaged) or damaged_range.by_boundary(damaged) or damaged_range.by_search(damaged)
    return end if found is None else found


class _DamagedRange:
    """A range of a partition up to ``end``, in which something is damaged."""

    def __init__(self, session: Session, source: TopicPartition, end: int) -> None:
        self._session, self._source, self._end = session, source, end

    def by_length(self, damaged: int) -> int | None:
        header = read_slice(self._session, self._source, damaged, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        size = frame_bytes(header)
        following = damaged + size
        if not HEADER_BYTES <= size <= HEADER_BYTES + FRAME_BYTES_MAX:
            return None
        return following if following == self._end or self._is_good(following) else None

    def by_boundary(self, damaged: int) -> int | None:
        if EXT_BOUNDARY not in self._session.extensions:
            return None
        step = _STEP_BYTES
        while True:
            asked = min(damaged + step, self._end)
            boundary = lookup(self._session, self._source.topic, self._source.partition.index, asked, "boundary")
            if boundary > damaged and (boundary == self._end or self._is_good(boundary)):
                return self._first_leading_to(boundary, damaged)
            if asked == self._end:
                return None
            step *= _STEP_FACTOR

    def by_search(self, damaged: int) -> int | None:
        at = damaged + 1
        while at < self._end:
            size = min(WINDOW_BYTES, self._end - at)
            window = read_slice(self._session, self._source, at, size)
            last = at + len(window) >= self._end or len(window) < size
            found = first_chain(window, exact=False)
            if found is not None:
                return at + found
            if last:
                return None
            at += len(window) - HEADER_BYTES + 1
        return None

    def _first_leading_to(self, boundary: int, damaged: int) -> int:
        size = boundary - damaged - 1
        if size > WINDOW_BYTES:
            return boundary
        window = read_slice(self._session, self._source, damaged + 1, size)
        found = first_chain(window, exact=True) if len(window) == size else None
        return boundary if found is None else damaged + 1 + found

    def _is_good(self, offset: int) -> bool:
        header = read_slice(self._session, self._source, offset, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return False
        length, stored, _, _ = header_at(header)
        if not 0 <= length <= FRAME_BYTES_MAX or not any(header):
            return False
        body = read_slice(self._session, self._source, offset + HEADER_BYTES, length)
        return len(body) == length and bool(checksum(body) == stored)


def first_chain(data: bytes, *, exact: bool) -> int | None:
    """Return the first position in ``data`` from which intact frames follow each other to its end.

    With ``exact`` the last one must end where ``data`` ends; otherwise it may be cut there, if it is not the only one.
    A damaged frame whose length leads to an intact one is accepted, and so is anything after ``_CHAIN_LONG`` intact
    frames. ``None`` if there is no such position, or the search would exceed its limit.
    """
    chain = _Chain(len(data), exact)
    left = _CHECKED_FACTOR * max(len(data), _BODY_BYTES_SMALL)
    for at, length in _plausible_headers(data):
        end = at + HEADER_BYTES + length
        if end > len(data):
            chain.cut(at)
        elif length <= _BODY_BYTES_SMALL or chain.leads_on(end):
            left -= length
            if left < 0:
                return None
            good = checksum(data[at + HEADER_BYTES : end]) == header_at(data, at).checksum
            chain.add(at, end, good=good, filled=length > 0)
    return chain.first


class _Chain:
    """The frames after each position; positions are added from the last to the first."""

    def __init__(self, end: int, exact: bool) -> None:
        self.first: int | None = None
        self._exact = exact
        self._ends = {end} if exact else set(range(end - HEADER_BYTES + 1, end + 1))
        self._believed: set[int] = set()  # good frames begin there and lead on
        self._damaged: set[int] = set()  # positions of damaged frames whose length leads to a frame
        self._strength: dict[int, int] = {}  # good frames in a row from there on, empty ones not counted

    def cut(self, at: int) -> None:
        """A possible frame begins at ``at`` and continues after the end."""
        if not self._exact:
            self._ends.add(at)

    def leads_on(self, at: int) -> bool:
        """Whether something that is trusted begins at ``at``."""
        return at in self._believed or at in self._damaged or at in self._ends

    def add(self, at: int, end: int, *, good: bool, filled: bool) -> None:
        """Add a frame from ``at`` to ``end``. Empty ones prove little: twenty bytes that begin with zeros look like
        one.
        """
        if not good:
            if end in self._believed:
                self._damaged.add(at)
            return
        self._strength[at] = filled + self._strength.get(end, 0)
        proven = self._exact or self._strength[at] > 0
        if (self.leads_on(end) and proven) or self._strength[at] >= _CHAIN_LONG:
            self._believed.add(at)
            self.first = at


def _plausible_headers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (position, body length) of possible headers, last one first. Zeros are not headers: lost data reads as
    zeros.
    """
    if len(data) < HEADER_BYTES:
        return
    raw = np.frombuffer(data, dtype=np.uint8)
    places = len(data) - HEADER_BYTES + 1
    lengths = np.zeros(places, dtype=np.uint32)
    for byte in range(4):
        lengths |= raw[byte : byte + places].astype(np.uint32) << np.uint32(24 - 8 * byte)
    for at in np.flatnonzero(lengths <= FRAME_BYTES_MAX)[::-1].tolist():
        if lengths[at] or any(data[at : at + HEADER_BYTES]):
            yield at, int(lengths[at])
