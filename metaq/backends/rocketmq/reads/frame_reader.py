"""Reads a range of a queue from the bundled broker as stored frames; otherwise by pulls.

::

    is the broker the bundled one? ──no──────────────────────────────────▶ pulls (``pull_reader``)
    │ yes, its registration says so                                        ▲
    ▼                                                                      │ missing messages, refusals,
    frames, several requests in flight ──▶ the requested ones, whole? ──no─┘ a lost connection, anything else
    │ the body of a response, or this machine's file

After a fault a few messages are pulled, and then frames are requested again; after several faults in a row the rest of
the range is pulled. So every condition of a range has the meaning that it has for pulls, and frames are an optimisation
only.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.frame_pulls import (
    FilePart,
    FrameQueue,
    FrameWindow,
    measure_frames,
)
from metaq.backends.rocketmq.reads.frame_pulls import Measure as MeasureFrames
from metaq.backends.rocketmq.reads.pull_reader import PullSettings, RecordRun, pull_range
from metaq.backends.rocketmq.reads.record_walk import Measure, measure_records
from metaq.backends.rocketmq.routes import Routes
from metaq.backends.rocketmq.session import Session
from metaq.backends.segment_files import READ_CHUNK_BYTES, open_segment
from metaq.errors import MetaqError
from metaq.formats.frames import HEADER_BYTES, frame_bytes
from metaq.formats.stored_records import FrameRun
from metaq.model import OffsetRange, Partition
from metaq.net.machine import boot_id
from metaq.net.retry import TimeLimit
from metaq.protocols.file_location import FileLocation
from metaq.protocols.remoting.codes import ResponseCode

PULLED_AFTER_FAULT: Final = 32
"""Messages that are pulled after a fault."""

FAULTS_MAX: Final = 3
"""Consecutive faults after which the rest is pulled."""

IN_FLIGHT_MAX: Final = 8
"""Most requests in flight."""

FRAME_BYTES_MAX: Final = 128 << 20
"""Longest valid frame."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Functions that count records and frames: pass compiled ones for speed."""

    records: Measure = measure_records
    frames: MeasureFrames = measure_frames


def read_range(
    pool: SessionPool,
    routes: Routes,
    topic: str,
    queue: Partition,
    offset_range: OffsetRange,
    settings: PullSettings | None = None,
    *,
    measures: Measures | None = None,
    pulled_until: int = 0,
) -> Generator[RecordRun | FrameRun, None, None]:
    """Yield the messages of ``queue`` with offsets in ``offset_range``, in order, as runs of records or of frames.

    Frames include all messages, whatever the subscription's tags: filter them. The caller verifies checksums. Messages
    below ``pulled_until`` are pulled as records. The data of a run is valid until the next one is requested.

    Raises as ``pull_range``.
    """
    settings = PullSettings() if settings is None else settings
    reader = _FrameReader(pool, routes, topic, queue, offset_range, settings, measures or Measures(), pulled_until)
    return reader.runs()


class _FrameReader:
    def __init__(
        self,
        pool: SessionPool,
        routes: Routes,
        topic: str,
        queue: Partition,
        offset_range: OffsetRange,
        settings: PullSettings,
        measures: Measures,
        pulled_until: int,
    ) -> None:
        self._pool, self._routes, self._topic, self._queue = pool, routes, topic, queue
        self._position, self._end = offset_range.start, offset_range.end
        self._settings, self._measures, self._pulled_until = settings, measures, pulled_until
        names = [with_namespace(name, routes.namespace) for name in (topic, settings.group)]
        self._asked_queue = FrameQueue(names[0], queue.broker_name, queue.index, names[1])
        self._files = _SegmentFiles(f"{names[0]}-{queue.index}")
        self._as_file = boot_id() is not None
        self._window = self._new_window()
        self._lease = ExitStack()
        self._session: Session | None = None
        self._pulls_only = settings.subscription.type != "TAG"
        self._faults = 0
        self._limit = TimeLimit.of(settings.within_s, pool.clock)

    def runs(self) -> Generator[RecordRun | FrameRun, None, None]:
        try:
            while self._position < self._end:
                if not self._pulls_only and self._position >= self._pulled_until and self._is_bundled():
                    yield from self._frames()
                    continue
                stop = min(self._end, self._pulled_until) if self._position < self._pulled_until else self._end
                for run in self._pulled(stop):
                    yield run
                    self._position = run.end
                self._window = self._new_window()
        finally:
            self._leave()
            self._files.close()

    def _is_bundled(self) -> bool:
        """Whether to ask the broker for frames; if not, the rest is pulled."""
        if self._session is not None and not self._session.closed:
            return True
        name = self._queue.broker_name
        try:
            address = self._routes.read_address(name, topic=self._topic)
            if self._routes.metaq_broker(address) is not None:
                self._leave()
                self._session = self._lease.enter_context(self._pool.lease(address))
                return True
        except MetaqError:
            pass  # a pull retries
        self._pulls_only = True
        return False

    def _pulled(self, stop: int) -> Iterator[RecordRun]:
        wanted, settings = OffsetRange(self._position, stop), self._settings
        if self._limit is not None and self._faults:
            settings = replace(settings, within_s=self._limit.left_s)
        return pull_range(
            self._pool, self._routes, self._topic, self._queue, wanted, settings, measure=self._measures.records
        )

    def _frames(self) -> Iterator[FrameRun]:
        assert self._session is not None
        if self._limit is not None:
            if not self._faults:
                self._limit.renew()
            self._session.until_s = self._limit.half().until_s  # what does not arrive in time is pulled
        try:
            self._window.ask(self._session, self._end)
            found = self._window.collect(self._session)
        except RequestRefused as refusal:
            self._pulls_only = refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            found = None
        except MetaqError:
            found = None
        if found is None or (found.run if isinstance(found, FilePart) else found).start != self._position:
            self._pull_some()
        elif isinstance(found, FilePart):
            yield from self._runs_of(found)
        elif self._measures.frames(found.data, found.end - found.start) != (found.end - found.start, len(found.data)):
            self._pull_some()
        else:
            yield found
            self._passed(found.end)

    def _runs_of(self, part: FilePart) -> Iterator[FrameRun]:
        """Yield the frames in a file, piece by piece."""
        run, place = part
        if not self._files.open(place):
            self._leave()
            self._as_file = False
            self._window = self._new_window()
            return
        at, start, chunk_bytes = 0, run.start, READ_CHUNK_BYTES
        while start < run.end:
            wanted_bytes = min(chunk_bytes, place.length - at)
            data = self._files.read(place.position + at, wanted_bytes)
            count, size = self._measures.frames(data, run.end - start)
            if not count:
                chunk_bytes = _frame_bytes(data)
                if len(data) < wanted_bytes or not wanted_bytes < chunk_bytes <= place.length - at:
                    self._pull_some()
                    return
                continue
            yield FrameRun(start, start + count, data[:size], run.physical_offset + at, run.known_ms, run.store_host)
            at, start, chunk_bytes = at + size, start + count, READ_CHUNK_BYTES
            self._passed(start)

    def _passed(self, position: int) -> None:
        self._position, self._faults = position, 0
        if self._session is not None:
            self._window.advance(self._session, position)

    def _pull_some(self) -> None:
        """Pull the next few messages, or all that are left."""
        self._leave()
        self._faults += 1
        self._pulls_only |= self._faults > FAULTS_MAX
        self._pulled_until = self._position + PULLED_AFTER_FAULT

    def _new_window(self) -> FrameWindow:
        in_flight = max(1, min(IN_FLIGHT_MAX, self._settings.in_flight))
        return FrameWindow(self._asked_queue, self._position, in_flight, self._settings.bytes_max, self._as_file)

    def _leave(self) -> None:
        self._window.abandon(self._session)
        self._lease.close()
        self._session = None


def _frame_bytes(data: memoryview) -> int:
    """How many bytes the frame has that begins there; 0: that cannot be."""
    size = frame_bytes(data) if len(data) >= HEADER_BYTES else 0
    return size if HEADER_BYTES <= size <= HEADER_BYTES + FRAME_BYTES_MAX else 0


class _SegmentFiles:
    """The segment files of one partition, in ``folder``, one open at a time."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._identity: tuple[int, int] | None = None
        self._buffer = memoryview(b"")

    def open(self, place: FileLocation) -> bool:
        """Open the file unless it is open already; return whether it is open."""
        if (place.device, place.inode) == self._identity:
            return True
        self.close()
        self._fd = open_segment(place, self._folder)
        self._identity = None if self._fd is None else (place.device, place.inode)
        return self._fd is not None

    def read(self, position: int, byte_count: int) -> memoryview:
        """Return up to ``byte_count`` bytes; they are valid until the next call."""
        if len(self._buffer) < byte_count:
            self._buffer = memoryview(bytearray(max(byte_count, READ_CHUNK_BYTES)))
        assert self._fd is not None
        try:
            return self._buffer[: os.preadv(self._fd, [self._buffer[:byte_count]], position)]
        except OSError:
            return self._buffer[:0]

    def close(self) -> None:
        fd, self._fd, self._identity = self._fd, None, None
        if fd is not None:
            os.close(fd)
