"""Reads a range of a queue as runs of whole records, with several pulls in flight.

Responses to the pull at ``position``, and their handling:

=====================  ==================================================================================
response               handling
=====================  ==================================================================================
found                  its records are a run; missing offsets among them are lost data
nothing wanted (20)    a filter matched nothing: the position moves on. Without a filter, or if the remark
                       says so, the messages were deleted
not yet (19)           the queue's index lags behind its log, or a slave behind its master: wait, ask again
unknown topic          from a slave: it may not know the topic yet, wait; else an error
moved (21)             the range is not stored; from a slave: ask the master; else lost data, or a
                       truncated queue
busy, connection lost  pause, ask again, at another address of the broker if there is one
another code           an error
=====================  ==================================================================================

The broker may suggest to continue at its slave, or back at the master.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from metaq.backends.rocketmq.errors import BrokerAway, OffsetOutOfRange, RequestRefused
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pull_window import PullWindow, SentPull
from metaq.backends.rocketmq.reads.pulls import ALL, GROUP, Moved, NotYet, PulledQueue, PulledRecords, Subscription
from metaq.backends.rocketmq.reads.record_walk import (
    Measure,
    MeasuredRecords,
    WantedRecords,
    measure_records,
    store_times,
)
from metaq.backends.rocketmq.routes import MASTER_ID, SLAVE_ID, Routes
from metaq.backends.rocketmq.session import OUTSTANDING_MAX, Session
from metaq.errors import ConnectionFailed, DataMissing, DeadlineExceeded, MetaqError
from metaq.model import Address, OffsetRange, Partition
from metaq.net.retry import Attempts, RetryPolicy, TimeLimit
from metaq.protocols.remoting.codes import ResponseCode

MESSAGES_MAX: Final = 32
"""How many messages a broker returns for a pull at most, by default."""

_WAIT_S_START: Final = 0.02
_WAIT_S_MAX: Final = 1.0

NOT_AT_SLAVE: Final = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
"""Refusals of a slave that may be temporary: it copies its master's settings every ten seconds."""


class ReadFrom(Enum):
    """Which of a broker's addresses to read from, while it answers."""

    MASTER = "master"
    SUGGESTED = "suggested"
    """The master, until it suggests a slave because the messages are no longer in its memory."""


@dataclass(frozen=True, slots=True)
class PullSettings:
    """How to read. ``group`` is a name without namespace.

    ``in_flight`` pulls of up to ``messages_max`` messages are sent ahead, fewer if their responses would exceed
    ``bytes_max`` together; one response may have 256 KiB, or a single larger message. ``wait_s`` is how long to wait
    for messages that must exist. ``gaps_allowed``: missing offsets are not lost data, as in a compacted topic.
    ``within_s``: how long to wait for a response, including retries; by default as ``policy`` says.
    """

    group: str = GROUP
    subscription: Subscription = ALL
    messages_max: int = MESSAGES_MAX
    in_flight: int = 32
    bytes_max: int = 8 << 20
    wait_s: float = 30.0
    read_from: ReadFrom = ReadFrom.SUGGESTED
    gaps_allowed: bool = False
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    within_s: float | None = None

    def __post_init__(self) -> None:
        limits = (("messages_max", 1, 1 << 16), ("in_flight", 1, OUTSTANDING_MAX // 2), ("bytes_max", 1, 1 << 31))
        for name, low, high in limits:
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)}: expected {low}..{high}")


class RecordRun(NamedTuple):
    """``records`` whole records back to back: all wanted ones of the offsets ``[start, end)``. May be empty."""

    start: int
    end: int
    records: int
    data: memoryview


def pull_range(
    pool: SessionPool,
    routes: Routes,
    topic: str,
    queue: Partition,
    offset_range: OffsetRange,
    settings: PullSettings | None = None,
    *,
    measure: Measure = measure_records,
) -> Generator[RecordRun, None, None]:
    """Yield the records of ``queue`` with offsets in ``offset_range``, in order, as runs without gaps between them.

    ``measure`` finds the wanted records in a response; pass a compiled one for speed. The caller verifies checksums.

    Raises:
        OffsetOutOfRange: Messages of the range were deleted, or the queue ends before it. Earlier runs were yielded.
        DataMissing: The rest of the range was not available within ``settings.wait_s``.
        RequestRefused, AccessDenied: The broker refused a pull.
        ConnectionFailed, DeadlineExceeded, BrokerAway, NameServersAway: Retrying did not help.
        ProtocolError: The broker sent other messages than requested, or no valid records.
    """
    settings = PullSettings() if settings is None else settings
    reader = _QueueReader(pool, routes, topic, queue, offset_range, settings, measure)
    return reader.runs()


class _QueueReader:
    def __init__(
        self,
        pool: SessionPool,
        routes: Routes,
        topic: str,
        queue: Partition,
        offset_range: OffsetRange,
        settings: PullSettings,
        measure: Measure,
    ) -> None:
        names = [with_namespace(name, routes.namespace) for name in (topic, settings.group)]
        self._pulled = PulledQueue(names[0], queue.broker_name, queue.index, names[1], settings.subscription)
        self._where = f"{topic} queue {queue}"
        self._wanted = WantedRecords(names[0].encode(), queue.index, offset_range.start, offset_range.end)
        self._settings, self._measure = settings, measure
        self._clock = pool.clock
        self._limit = TimeLimit.of(settings.within_s, pool.clock)
        self._attempts = Attempts(settings.policy, pool.clock, self._limit)
        self._server = _Server(pool, routes, queue.broker_name, topic)
        self._window = PullWindow(
            self._pulled, offset_range.start, settings.messages_max, settings.in_flight, settings.bytes_max
        )
        self._is_checked = False
        self._waited_s = 0.0
        self._pause_s = _WAIT_S_START
        self._has_gaps = settings.gaps_allowed or not settings.subscription.is_all

    def runs(self) -> Generator[RecordRun, None, None]:
        try:
            while self._window.position < self._wanted.end:
                run = self._next_run()
                if run is not None:
                    yield run
        finally:
            self._leave()

    def _next_run(self) -> RecordRun | None:
        self._attempts.begin()
        try:
            session = self._server.session(self._limit)
            if not self._is_checked:
                self._pulled.check(session)
                self._is_checked = True
            self._window.ask(session, self._wanted.end)
            asked, outcome = self._window.collect(session)
        except MetaqError as error:
            self._recover(error)
            return None
        if isinstance(outcome, PulledRecords):
            return self._run_of(session, outcome)
        if isinstance(outcome, NotYet):
            self._wait(outcome.text)
        else:
            self._moved(asked, outcome)
        return None

    def _run_of(self, session: Session, found: PulledRecords) -> RecordRun | None:
        start = self._window.position
        if found.removed and found.next_offset > start:  # with a filter, only ``removed`` shows it
            raise OffsetOutOfRange(self._where, start, found.next_offset, max(found.next_offset, found.max_offset))
        measured = self._measured(session, found, self._wanted._replace(start=start))
        data = found.data[measured.begin : measured.stop]
        if self._has_gaps:
            next_offset = 0 if measured.ends_early else found.next_offset
            end = min(max(next_offset, measured.last + 1), self._wanted.end)
        else:
            self._check_front(found, measured)
            end = start + measured.records
            if measured.last >= end:  # offsets are missing in between: report up to there, the rest is read again
                end = _first_gap(data, start)
                measured = self._measured(session, found, self._wanted._replace(start=start, end=end))
                data = found.data[measured.begin : measured.stop]
        if end <= start:
            return None  # covered by an earlier response that had more than requested
        self._progressed(session, end, found.broker_id)
        return RecordRun(start, end, measured.records, data)

    def _measured(self, session: Session, found: PulledRecords, wanted: WantedRecords) -> MeasuredRecords:
        measured = self._measure(found.data, wanted)
        if measured.problem is not None:
            at = measured.last + 1 if measured.records else wanted.start
            raise session.protocol_error(f"{self._where}, the record at offset {at} or after: {measured.problem}")
        return measured

    def _check_front(self, found: PulledRecords, measured: MeasuredRecords) -> None:
        """Without a filter, check that the first message of a response is the requested one, else data was lost."""
        start = self._window.position
        first = measured.first if measured.records else found.next_offset
        if first > start:
            raise OffsetOutOfRange(self._where, start, first, max(first, found.max_offset))

    def _progressed(self, session: Session, end: int, suggested_id: int) -> None:
        self._attempts.progressed()
        self._waited_s, self._pause_s = 0.0, _WAIT_S_START
        self._window.advance(session, end)
        if self._settings.read_from is ReadFrom.SUGGESTED and suggested_id != self._server.wanted_id:
            self._prefer(suggested_id)

    def _wait(self, text: str) -> None:
        """Ask the master again a little later, for as long as the settings allow."""
        self._window.abandon(self._server.current)
        if self._waited_s >= self._settings.wait_s:
            raise DataMissing(self._where, self._window.position, self._wanted.end, text)
        pause_s = min(self._pause_s, self._settings.wait_s - self._waited_s)
        self._clock.sleep(pause_s)
        self._waited_s += pause_s
        self._pause_s = min(2 * self._pause_s, _WAIT_S_MAX)
        self._prefer(MASTER_ID)

    def _moved(self, asked: SentPull, moved: Moved) -> None:
        """Handle 21: accept it if no earlier pull was in flight, and it is from the master or there is none."""
        if not asked.is_first:
            self._window.abandon(self._server.current)
        elif self._prefer(MASTER_ID):
            return
        elif asked.offset > moved.end and self._server.is_slave():
            self._wait(f"the slave has messages up to {moved.end}")
        else:
            raise OffsetOutOfRange(self._where, asked.offset, moved.first, max(moved.first, moved.end))

    def _recover(self, error: MetaqError) -> None:
        """Pause, if a retry may help against ``error``; after a lost connection another address may be next."""
        if isinstance(error, RequestRefused) and error.code in NOT_AT_SLAVE and self._server.is_slave():
            self._wait(str(error))
        else:
            if error.away:
                self._server.avoid(silent=isinstance(error, ConnectionFailed | DeadlineExceeded))
            self._leave()
            self._attempts.pause_after(error)

    def _prefer(self, broker_id: int) -> bool:
        """Read from that server of the broker from now on; return whether it is another one than before."""
        if not self._server.prefer(broker_id):
            return False
        self._leave()
        return True

    def _leave(self) -> None:
        self._window.abandon(self._server.current)
        self._server.leave()


def _first_gap(data: memoryview, start: int) -> int:
    """Return the first offset from ``start`` on without a record in ``data``."""
    for offset, _ in store_times(data):
        if offset != start:
            break
        start += 1
    return start


class _Server:
    """The server of a broker that is currently read from, and the session with it."""

    def __init__(self, pool: SessionPool, routes: Routes, broker_name: str, topic: str) -> None:
        self._pool, self._routes, self._broker_name, self._topic = pool, routes, broker_name, topic
        self.wanted_id = MASTER_ID
        self._address: Address | None = None
        self._has_other = False  # whether there is another address to read from
        self._lease = ExitStack()
        self.current: Session | None = None

    def session(self, limit: TimeLimit | None = None) -> Session:
        """Return the session; a new one if there is none, or it was closed. ``limit`` applies to the current
        operation.
        """
        if self.current is None or self.current.closed:
            self.leave()
            self._address = self._where(self.wanted_id)
            self._has_other = limit is not None and self._where(SLAVE_ID) != self._address
            self.current = self._lease.enter_context(self._pool.lease(self._address, self._until_s(limit)))
        else:
            self.current.until_s = self._until_s(limit)
        return self.current

    def _until_s(self, limit: TimeLimit | None) -> float | None:
        """Return when to give up the current address: after half of the time, if there is another one to try."""
        if limit is None:
            return None
        return (limit.half() if self._has_other else limit).until_s

    def prefer(self, broker_id: int) -> bool:
        """Read from the server with this id; return whether its address differs from the current one."""
        self.wanted_id = broker_id
        return self._address is not None and self._where(broker_id) != self._address

    def _where(self, broker_id: int) -> Address:
        return self._routes.read_address(self._broker_name, broker_id, topic=self._topic)

    def is_slave(self) -> bool:
        """Whether the current address is not the broker's master, or there is no master now."""
        try:
            return self._routes.write_address(self._broker_name, topic=self._topic) != self._address
        except BrokerAway:
            return True

    def avoid(self, *, silent: bool) -> None:
        """Look up the broker again; ``silent``: the current address does not answer."""
        if silent and self._address is not None:
            self._routes.avoid(self._address)
        self._routes.invalidate()

    def leave(self) -> None:
        self._lease.close()
        self.current = None
