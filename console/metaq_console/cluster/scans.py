"""Scans: searches through the messages of a topic that run at this server, are bounded, and can be stopped.

A scan reads the partitions in alternation, so that a long one does not use up the limit. It ends with the first of:
enough matches, enough messages read, its time, its end, a cancellation. Messages that cannot match are passed in pieces
of about a thousand. ``progress`` can be read at any time, also while the scan runs in another thread; ``positions`` in
it is where a later scan goes on.

A scan for the newest messages keeps the newest that it read. It ends with ``end`` if these are the newest there are,
``limit`` of them or all; with ``bytes`` if they are, and older ones of the ``limit`` were left out; otherwise newer
ones may be missing.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from metaq.model import OffsetRange
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_console.cluster.system import PartitionReader, QueueSystem, ReadStart
from metaq_console.cluster.values import FoundMessage, PassedMessages

LIMIT_MAX: Final = 1000
"""Limit on matches that a scan keeps."""
KEPT_BYTES_MAX: Final = 32 << 20
"""Limit on bytes of matches that a scan keeps; the first match is kept whatever its size."""
READ_MAX: Final = 100_000_000
READ_DEFAULT: Final = 100_000
SECONDS_MAX: Final = 600.0
SECONDS_DEFAULT: Final = 10.0
ROUND_MESSAGES: Final = 5000
"""Messages that are looked at in a partition before the scan switches to the next one that waits."""
ROUND_PASSED: Final = 500_000
"""The same for messages that the reader passes because they cannot match."""
CLOCK_MESSAGES: Final = 64
"""Messages between two looks at the clock."""

Stopped = Literal["limit", "read", "seconds", "bytes", "cancelled", "end", "failed"]
"""Why a scan ended: enough matches; the most messages, seconds or bytes of matches; stopped; everything was read; an
error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """What to look for, and how far.

    ``start``: as in ``QueueSystem.positions``, or ``newest``, the last ``limit`` messages. ``at``: offsets of some
    partitions instead, such as ``positions`` of an earlier scan's progress. ``partition``: only this.
    A message matches if all of ``attribute``, ``key``, ``message_id`` and ``text`` that are given match, and it was
    stored in ``[since_ms, until_ms]``. ``text`` is a part of the value, in UTF-8 or GB18030.

    Raises:
        ValueError: A limit is outside its range, or values contradict each other.
    """

    topic: str
    partition: str | None = None
    start: ReadStart | Literal["newest"] = "earliest"
    at: Mapping[str, int] = field(default_factory=dict)
    attribute: str | None = None
    key: str | None = None
    message_id: str | None = None
    text: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    limit: int = 50
    read_max: int = READ_DEFAULT
    seconds: float = SECONDS_DEFAULT

    def __post_init__(self) -> None:
        for name, value, most in (
            ("limit", self.limit, LIMIT_MAX),
            ("read_max", self.read_max, READ_MAX),
            ("seconds", self.seconds, SECONDS_MAX),
        ):
            if not 0 < value <= most:
                raise ValueError(f"{name}={value}: expected 1..{most:g}")
        if self.since_ms is not None and self.until_ms is not None and self.until_ms < self.since_ms:
            raise ValueError(f"until_ms={self.until_ms}: expected at least since_ms ({self.since_ms})")

    @property
    def filters(self) -> bool:
        """Whether a message may be read that does not match."""
        return any(one is not None for one in (self.attribute, self.key, self.message_id, self.text, self.until_ms))

    @property
    def shows_newest(self) -> bool:
        """Whether it is for the newest messages, whatever is in them."""
        return self.start == "newest" and not self.at and not self.filters and self.since_ms is None

    @property
    def needles(self) -> tuple[bytes, ...]:
        """Bytes of which one is in every message that matches; none if messages must be looked at one by one."""
        if self.until_ms is not None or self.message_id is not None:
            return ()
        if self.text is not None:
            return _spellings(self.text)
        wanted = self.attribute or self.key
        return () if not wanted else (wanted.encode("utf-8", "replace"),)

    def matches(self, message: FoundMessage) -> bool:
        """Return whether a message is looked for."""
        if self.attribute is not None and message.attribute != self.attribute:
            return False
        if self.message_id is not None and message.message_id != self.message_id:
            return False
        if self.key is not None and self.key not in message.keys and message.attribute != self.key:
            return False
        if self.text is not None and not any(one in message.data for one in _spellings(self.text)):
            return False
        at = message.timestamp_ms
        if self.since_ms is not None and at is not None and at < self.since_ms:
            return False
        return self.until_ms is None or at is None or at <= self.until_ms


@lru_cache(maxsize=64)
def _spellings(text: str) -> tuple[bytes, ...]:
    """Return the bytes of a text in the encodings that values are searched in."""
    found = dict.fromkeys((text.encode("utf-8", "replace"), text.encode("gb18030", "replace")))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanProgress:
    """How far a scan is. ``left`` counts what ``unit`` of the system counts: bytes, or messages."""

    running: bool
    read: int
    """Messages that were read."""
    read_bytes: int
    """Bytes of their values."""
    matched: int
    left: int
    """What is not read between the start and the end that the partitions had when the scan began."""
    fraction: float
    """Part that is read, 0..1."""
    seconds: float
    stopped: Stopped | None
    """Why it ended. Of the newest messages ``bytes`` says that they are, and fewer; all but ``end`` and ``bytes``, that
    newer ones may be missing.
    """
    error: str | None
    positions: Mapping[str, int]
    """Where each partition is read next."""


@dataclass(slots=True)
class _Part:
    """One partition of a scan."""

    reader: PartitionReader
    start: int
    end: int
    position: int
    is_done: bool = False


@dataclass(slots=True)
class _Counts:
    read: int = 0
    read_bytes: int = 0
    kept_bytes: int = 0
    dropped: tuple[int, str, int] | None = None
    """The age of the newest message that a scan for the newest did not keep."""
    began_s: float = 0.0
    ended_s: float | None = None
    stopped: Stopped | None = None
    error: str | None = None
    starts: Mapping[str, int] = field(default_factory=dict)
    parts: dict[str, _Part] = field(default_factory=dict)


class Scan:
    """One scan. ``run`` blocks; all else may be called from any thread meanwhile."""

    def __init__(self, system: QueueSystem, request: ScanRequest, clock: Clock = SYSTEM_CLOCK) -> None:
        self.request: Final = request
        self._system, self._clock = system, clock
        self._found: list[FoundMessage] = []
        self._is_cancelled = threading.Event()
        self._counts = _Counts(began_s=clock.monotonic())

    def messages(self, start: int = 0) -> list[FoundMessage]:
        """Return the matches found so far, from index ``start`` on."""
        return self._found[start:]

    def cancel(self) -> None:
        """Stop the scan at its next message."""
        self._is_cancelled.set()

    @property
    def progress(self) -> ScanProgress:
        counts = self._counts
        parts = dict(counts.parts)
        left = sum(max(0, part.end - part.position) for part in parts.values() if not part.is_done)
        whole = sum(max(0, part.end - part.start) for part in parts.values())
        ended_s = self._clock.monotonic() if counts.ended_s is None else counts.ended_s
        return ScanProgress(
            running=counts.stopped is None,
            read=counts.read,
            read_bytes=counts.read_bytes,
            matched=len(self._found),
            left=left,
            fraction=1.0 if counts.stopped == "end" else 0.0 if not whole else 1 - left / whole,
            seconds=ended_s - counts.began_s,
            stopped=counts.stopped,
            error=counts.error,
            positions={**counts.starts, **{where: part.position for where, part in parts.items()}},
        )

    def run(self) -> None:
        """Read until the scan ends.

        Raises:
            MetaqError, ValueError, RequestFailed: The cluster cannot answer, or a value is not one of the cluster's.
        """
        stopped: Stopped = "failed"
        try:
            stopped = self._search()
        except Exception as error:
            self._counts.error = str(error)
            raise
        finally:
            self._counts.ended_s = self._clock.monotonic()
            self._counts.stopped = stopped

    def _search(self) -> Stopped:
        request = self.request
        indexed = None
        if request.message_id is not None or request.key is not None:
            indexed = self._system.indexed(
                request.topic,
                message_id=request.message_id,
                key=request.key,
                since_ms=request.since_ms,
                until_ms=request.until_ms,
            )
        if indexed is not None:
            stopped = self._take_all(indexed)
        else:
            self._begin()
            stopped = self._read_all()
        is_short = self._counts.dropped is not None and len(self._found) < request.limit
        return "bytes" if stopped == "end" and is_short else stopped

    def _take_all(self, indexed: list[FoundMessage]) -> Stopped:
        for message in indexed:
            self._counts.read += 1
            if self.request.partition in (None, message.partition) and self.request.matches(message):
                stopped = self._keep(message)
                if stopped is not None:
                    return stopped
        return "end"

    def _begin(self) -> None:
        """Find out where each partition begins and ends."""
        request = self.request
        ends = self._system.positions(request.topic, "latest")
        starts = self._starts()
        if request.partition is not None and request.partition not in ends:
            self._system.require_all()
            there = ", ".join(sorted(ends)) or "none"
            raise ValueError(f"topic {request.topic!r} has no partition {request.partition!r}; it has {there}")
        wanted = {where: at for where, at in starts.items() if request.partition in (None, where)}
        self._counts.starts = wanted  # also of a partition that is left out: a later scan goes on there
        self._counts.parts = {
            where: self._part(where, OffsetRange(at, end))
            for where, at in wanted.items()
            if at < (end := ends.get(where, at))
        }

    def _part(self, where: str, wanted: OffsetRange) -> _Part:
        request = self.request
        reader = self._system.reader(
            request.topic, where, wanted, is_bulk=request.filters, is_given=where in request.at
        )
        return _Part(reader, wanted.start, wanted.end, wanted.start)

    def _starts(self) -> Mapping[str, int]:
        request = self.request
        if request.message_id is not None:
            return self._system.start_of_id(request.topic, request.message_id)
        start = request.start
        if start == "newest":
            found = self._system.newest_positions(request.topic, request.limit)
        elif request.since_ms is not None and start == "earliest":
            found = self._system.positions(request.topic, request.since_ms)
        else:
            found = self._system.positions(request.topic, start)
        return {**found, **request.at}

    def _read_all(self) -> Stopped:
        waiting = deque(self._counts.parts.values())
        while waiting:
            part = waiting.popleft()
            stopped = self._read_round(part, is_last=not waiting)
            if stopped is not None:
                return stopped
            if not part.is_done:
                waiting.append(part)
        return "end"

    def _read_round(self, part: _Part, *, is_last: bool) -> Stopped | None:
        """Read a piece of a partition, or all of it if it ``is_last``; return why the whole scan ends, if it does."""
        needles = self.request.needles
        left = self.request.read_max - self._counts.read
        messages = part.reader.search(needles, part.end, left) if needles else part.reader.messages()
        looked_at = passed = 0
        try:
            for message in messages:
                if isinstance(message, PassedMessages):
                    passed += message.count
                    stopped = self._pass(part, message)
                else:
                    looked_at += 1
                    stopped = self._look_at(part, message, looked_at)
                if stopped is not None or part.is_done:
                    return stopped
                if not is_last and (looked_at >= ROUND_MESSAGES or passed >= ROUND_PASSED):
                    return None
            part.is_done = True
            return None
        finally:
            close = getattr(messages, "close", None)
            if close is not None:
                close()

    def _pass(self, part: _Part, passed: PassedMessages) -> Stopped | None:
        """Count messages that cannot match."""
        part.position = passed.next_offset
        self._counts.read += passed.count
        self._counts.read_bytes += passed.value_bytes
        return self._limit(CLOCK_MESSAGES)

    def _look_at(self, part: _Part, message: FoundMessage, number: int) -> Stopped | None:
        """Keep a message if it matches; ``number`` counts the messages of the round."""
        counts = self._counts
        if message.offset >= part.end or self._is_past(message):
            part.is_done = True
            return None
        stopped = self._keep(message) if self.request.matches(message) else None
        if stopped == "bytes":
            return stopped
        part.position = message.next_offset
        counts.read += 1
        counts.read_bytes += len(message.data)
        return stopped or self._limit(number)

    def _is_past(self, message: FoundMessage) -> bool:
        """Whether the partition has only later messages from here on."""
        until_ms, at = self.request.until_ms, message.timestamp_ms
        return until_ms is not None and at is not None and at > until_ms

    def _keep(self, message: FoundMessage) -> Stopped | None:
        counts = self._counts
        if self.request.start == "newest":
            self._keep_newest(message)
            return None
        if self._found and counts.kept_bytes + len(message.data) > KEPT_BYTES_MAX:
            return "bytes"
        self._found.append(message)
        counts.kept_bytes += len(message.data)
        return "limit" if len(self._found) >= self.request.limit else None

    def _keep_newest(self, message: FoundMessage) -> None:
        """Keep a message among the newest, and drop the oldest that are too many; older ones are not kept any more."""
        counts, found = self._counts, self._found
        if counts.dropped is not None and _age(message) < counts.dropped:
            return
        insort(found, message, key=_age)
        counts.kept_bytes += len(message.data)
        while len(found) > self.request.limit or (counts.kept_bytes > KEPT_BYTES_MAX and len(found) > 1):
            counts.dropped = _age(found[0])
            counts.kept_bytes -= len(found.pop(0).data)

    def _limit(self, number: int) -> Stopped | None:
        if self._is_cancelled.is_set():
            return "cancelled"
        if self._counts.read >= self.request.read_max:
            return "read"
        is_looked = number % CLOCK_MESSAGES == 0 or number == 1
        if is_looked and self._clock.monotonic() - self._counts.began_s >= self.request.seconds:
            return "seconds"
        return None


def _age(message: FoundMessage) -> tuple[int, str, int]:
    """Return what messages are sorted by, the oldest first."""
    return (message.timestamp_ms or 0, message.partition, message.offset)
