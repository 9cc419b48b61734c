"""Fetches a byte range of a partition slice by slice; the next requests are in flight while the caller works.

A get is a slice of bytes, so requests for adjacent slices are posted before earlier ones are answered, and the slices
are returned in order::

    offset     start                   horizon
    received   ────────────────┤ end
    asked                      ├── get ──┼── get ──┤

A reply may be short (end of a segment, ``maxTransferSize``): the resulting gap is requested next, later slices stay
valid. Replies are received into reusable buffers, one for each request in flight.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from metaq.backends.metaq.fetch import AtEnd, Moved, Run, read_outcome
from metaq.backends.metaq.session import Session
from metaq.errors import MetaqError
from metaq.protocols.text.commands import Filled, Get

_LEARNED_BYTES_MIN: Final = 4096


@dataclass(frozen=True, slots=True)
class SlicedPartition:
    """The partition that is read, and the group named in requests."""

    topic: str
    index: int
    group: str


class LentRun(NamedTuple):
    """A run whose bytes are valid until the next one is requested."""

    offset: int
    data: memoryview

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class _Asked(NamedTuple):
    """A request in flight, and the buffer for its reply."""

    opaque: int
    get: Get
    buffer: memoryview


class Slices:
    """The requests of one reader. ``end`` is the offset after the received bytes."""

    def __init__(self, session: Session, source: SlicedPartition, start: int, fetch_bytes: int, prefetch: int) -> None:
        self._session, self._source = session, source
        self._fetch_bytes, self._prefetch = fetch_bytes, prefetch
        self.end = start
        self._spare: list[memoryview] = []
        self._asked: deque[_Asked] = deque()
        self._short_bytes = 0

    def ask(self, horizon: int) -> None:
        """Post requests: first for the gap after a short reply, then ahead, up to the horizon."""
        next_offset = self.end
        if self._asked:
            gap_bytes = self._asked[0].get.offset - next_offset
            if gap_bytes:
                self._asked.appendleft(self._post(next_offset, min(gap_bytes, self._fetch_bytes)))
            last = self._asked[-1].get
            next_offset = last.offset + last.max_bytes
        while len(self._asked) < self._prefetch and next_offset < horizon:
            self._asked.append(self._post(next_offset, min(self._fetch_bytes, horizon - next_offset)))
            next_offset += self._asked[-1].get.max_bytes

    def ask_ahead(self, horizon: int) -> None:
        """Post requests as ``ask`` does; a failure is raised later, when the bytes are needed."""
        try:
            self.ask(horizon)
        except MetaqError:
            self.abandon()

    def collect(self) -> tuple[memoryview, LentRun | AtEnd | Moved]:
        """Wait for the first request; return its buffer, which belongs to the caller until ``give_back``, and the
        outcome.
        """
        opaque, command, buffer = self._asked[0]
        reply = self._session.collect(opaque)
        self._asked.popleft()
        if isinstance(reply, Filled):
            data = buffer[: reply.size]
        else:
            outcome = read_outcome(self._session, command, reply)
            if not isinstance(outcome, Run):
                return buffer, outcome
            data = memoryview(outcome.data)
        self.end = command.offset + len(data)
        if len(data) < command.max_bytes:
            self._learn_from_short(len(data))
        return buffer, LentRun(command.offset, data)

    def give_back(self, buffer: memoryview) -> None:
        """Take back a buffer whose content is not used any more."""
        self._spare.append(buffer)

    def abandon(self) -> None:
        """Drop the requests in flight and their buffers, which the session may still fill."""
        for asked in self._asked:
            self._session.abandon(asked.opaque)
        self._asked.clear()

    def _post(self, offset: int, max_bytes: int) -> _Asked:
        source, buffer = self._source, self._spare.pop() if self._spare else memoryview(b"")
        if len(buffer) < max_bytes:
            buffer = memoryview(bytearray(max_bytes))
        command = Get(source.topic, source.group, source.index, offset, max_bytes, 0)
        return _Asked(self._session.post(command, buffer=buffer[:max_bytes]), command, buffer)

    def _learn_from_short(self, reply_bytes: int) -> None:
        """After two short replies of one length, request no more than that: it is the broker's maximum."""
        if reply_bytes == self._short_bytes:
            self._fetch_bytes = min(self._fetch_bytes, max(reply_bytes, _LEARNED_BYTES_MIN))
        self._short_bytes = reply_bytes
