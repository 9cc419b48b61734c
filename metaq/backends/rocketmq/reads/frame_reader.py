"""Reads a range of a queue from the bundled broker as stored frames; otherwise by pulls.

::

    is the broker the bundled one? ──no──────────────────────────────────▶ pulls (``pull_reader``)
    │ yes, its registration says so                                        ▲
    ▼                                                                      │ missing messages, refusals,
    frames, several requests in flight ──▶ the requested ones, whole? ──no─┘ a lost connection, anything else

After a fault a few messages are pulled, and then frames are requested again; after several faults in a row the rest of
the range is pulled. So every condition of a range has the meaning that it has for pulls, and frames are an optimisation
only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.frame_pulls import FrameQueue, FrameWindow, measure_frames
from metaq.backends.rocketmq.reads.frame_pulls import Measure as MeasureFrames
from metaq.backends.rocketmq.reads.pull_reader import PullSettings, RecordRun, pull_range
from metaq.backends.rocketmq.reads.record_walk import Measure, measure_records
from metaq.backends.rocketmq.routes import Routes
from metaq.backends.rocketmq.session import Session
from metaq.errors import MetaqError
from metaq.formats.stored_records import FrameRun
from metaq.model import OffsetRange, Partition
from metaq.net.retry import TimeLimit
from metaq.protocols.remoting.codes import ResponseCode

PULLED_AFTER_FAULT: Final = 32
"""Messages that are pulled after a fault."""

FAULTS_MAX: Final = 3
"""Consecutive faults after which the rest is pulled."""

IN_FLIGHT_MAX: Final = 8
"""Limit on requests in flight."""


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
        if found is None or found.start != self._position or not self._is_whole(found):
            self._pull_some()
        else:
            yield found
            self._passed(found.end)

    def _is_whole(self, run: FrameRun) -> bool:
        """Whether the data are exactly the frames of the run's offsets."""
        count = run.end - run.start
        return self._measures.frames(run.data, count) == (count, len(run.data))

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
        return FrameWindow(self._asked_queue, self._position, in_flight, self._settings.bytes_max)

    def _leave(self) -> None:
        self._window.abandon(self._session)
        self._lease.close()
        self._session = None
