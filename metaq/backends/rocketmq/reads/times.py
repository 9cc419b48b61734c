"""Where a time begins in a queue: the broker's answer, corrected by the store times of the messages around it.

Older brokers return the nearest message, even for a time after the last one, and any of several messages with one
store time. So the answer is only where the search begins. A window of messages is read::

    older < time          window              time <= newer
    ────────────┤ low     [p ... p+31]     high ├───────────

If the time begins inside the window, that is the result. If all of the window is older, ``low`` moves after it,
otherwise ``high`` to its front. Windows move away from the first one in steps that double, until both sides are known;
then the rest is halved. A right answer costs one pull, a wrong one a few.

If store times step back, as after a change of masters, the result is one of the places where older messages end and
newer ones begin.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from metaq.backends.rocketmq.reads.pulls import PulledQueue, PulledRecords, read_outcome
from metaq.backends.rocketmq.reads.record_walk import WantedRecords, measure_records, store_times
from metaq.backends.rocketmq.session import Session
from metaq.errors import MetaqError
from metaq.model import OffsetRange
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.offsets import SearchOffsetByTimestamp, SearchOffsetByTimestampResponse

WINDOW: Final = 32


class TimeBoundary(Enum):
    """Which boundary of a time is searched for."""

    LOWER = "lower"
    """The first message stored at the time or later; the queue's end if there is none."""
    UPPER = "upper"
    """The offset after the last message stored at the time or earlier; the queue's beginning if there is none."""


class TimeSearch:
    """Searches the range ``available`` of one queue."""

    def __init__(self, session: Session, queue: PulledQueue, available: OffsetRange) -> None:
        self._session, self._queue, self._available = session, queue, available

    def find(self, time_ms: int, boundary: TimeBoundary) -> int:
        """Return the offset of ``boundary`` for a time in milliseconds since 1970, by the broker's clock.

        Raises:
            RequestRefused, AccessDenied: The broker refused a request.
            ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
            MetaqError: The broker's range is no longer, or not yet, ``available`` (retryable).
        """
        if boundary is TimeBoundary.UPPER:
            time_ms += 1  # the boundary after a time is the one before the next millisecond
        low, high = self._available.start, self._available.end
        guess = self._guess(time_ms) if low < high else low
        position, step = min(max(guess - 1, low), max(high - 1, low)), WINDOW
        is_low_known = is_high_known = False
        while low < high:
            window = self._window(position, high)
            newer = next((offset for offset, stored_ms in window if stored_ms >= time_ms), None)
            if newer is not None and newer != window[0][0]:
                return newer
            if window and newer is None:
                low, is_low_known = window[-1][0] + 1, True
            else:
                high, is_high_known = position, True
            if is_low_known and is_high_known:
                position = low if high - low <= WINDOW else (low + high) // 2
            elif is_low_known:
                position = min(low + step - WINDOW, max(low, high - WINDOW))
            else:
                position = max(low, high - step)
            step *= 2
        return low

    def _guess(self, time_ms: int) -> int:
        queue = self._queue
        header = SearchOffsetByTimestamp(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=time_ms, boundary_type="lower"
        )
        command = to_request(header, broker_name=queue.broker_name)
        response = self._session.ask(command, f"the offset of time {time_ms} in {queue}")
        return self._session.read(response, SearchOffsetByTimestampResponse).offset

    def _window(self, position: int, end: int) -> list[tuple[int, int]]:
        """Return offset and store time of the next messages from ``position`` on, below ``end``; empty if there are
        none.
        """
        while position < end:
            command = self._queue.pull(position, WINDOW)
            outcome = read_outcome(self._session, command, self._session.call(command, f"the store times of {command}"))
            if not isinstance(outcome, PulledRecords):
                raise _NotThere(str(self._queue), position, end)
            wanted = WantedRecords(self._queue.topic.encode(), self._queue.queue_id, position, end)
            measured = measure_records(outcome.data, wanted)
            if measured.problem is not None:
                raise self._session.protocol_error(f"record {measured.records} of {self._queue}: {measured.problem}")
            if measured.records:
                return list(store_times(outcome.data[measured.begin : measured.stop]))
            position = outcome.next_offset
        return []


class _NotThere(MetaqError):
    """``queue`` returns no message at ``offset``, although it reported ``end``; a retry may succeed."""

    retryable = True

    def __init__(self, queue: str, offset: int, end: int) -> None:
        self.queue, self.offset, self.end = queue, offset, end
        super().__init__(queue, offset, end)

    def __str__(self) -> str:
        return (
            f"the broker gives no store time at offset {self.offset} of {self.queue}, which it says ends at {self.end}"
        )
