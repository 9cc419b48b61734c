"""Requests about offsets: committed (14, 15), of queues (30, 31, 32), and by time (29).

Responses are as in 4.9.7, for clients of 5.x as in 5.x. A commit with a response is answered when the offset is
durable; a oneway commit is durable within a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from metaq.errors import MetaqError
from metaq.model import INT64_MAX
from metaq.protocols.remoting.codes import VERSION_5, ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.offsets import (
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffset,
    GetMaxOffsetResponse,
    GetMinOffset,
    GetMinOffsetResponse,
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    SearchOffsetByTimestamp,
    SearchOffsetByTimestampResponse,
    UpdateConsumerOffset,
)
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.engine.topics import Topics
from metaq_broker.log.state.state_table import OnDurable
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.groups.group_settings import Groups
from metaq_broker.rocketmq.session import Call
from metaq_broker.rocketmq.when_kept import answer_when_kept

BOUNDARIES_FROM: Final = 435
"""Clients of this version (5.1.1) and above are answered the first message at or after a time, not the nearest."""

UPPER: Final = "upper"
_NOT_COMMITTED: Final = "Not found: the group has committed no offset for this queue"
UNKNOWN_TIME: Final = -1


class QueueUnreadable(MetaqError):
    """A queue cannot be read now: ``refusal``. Reporting it as empty would move its readers."""

    retryable = True

    def __init__(self, topic: str, queue: int, refusal: Refusal) -> None:
        self.topic, self.queue, self.refusal = topic, queue, refusal
        super().__init__(topic, queue, refusal)

    def __str__(self) -> str:
        reason = getattr(self.refusal, "reason", "") or "it was closed by an operator"
        return f"queue {self.queue} of topic {self.topic} cannot be read: {reason}"


class QueueOffsets(Protocol):
    """The required part of the message store. Missing queues are empty: 0, 0 and ``None``."""

    def min_offset(self, topic: str, queue: int) -> int: ...

    def max_offset(self, topic: str, queue: int) -> int: ...

    def fault(self, topic: str, queue: int) -> Refusal | None:
        """Return why a queue that may have messages cannot be read now; ``None`` if it can, or has none."""

    def offset_at(self, topic: str, queue: int, time_ms: int) -> int | Refusal:
        """Return the queue offset of the first message that was stored at or after a time; the end without one."""

    def store_time(self, topic: str, queue: int, queue_offset: int) -> int | None:
        """Return when a message was stored, in milliseconds; ``None`` if there is no such message."""


class OffsetRequests:
    def __init__(
        self,
        store: QueueOffsets,
        offsets: GroupOffsets,
        groups: Groups,
        topics: Topics,
        when_current: Callable[[OnDurable], None] | None = None,
    ) -> None:
        """``when_current``: in a pair, calls back once what is known here is certainly current."""
        self._store, self._offsets, self._groups, self._topics = store, offsets, groups, topics
        self._when_current = when_current

    def mount(self, dispatcher: Dispatcher) -> None:
        dispatcher.add([QueryConsumerOffset.CODE], self._query)
        dispatcher.add([UpdateConsumerOffset.CODE], self._update)
        dispatcher.add([SearchOffsetByTimestamp.CODE], self._search)
        dispatcher.add([GetMaxOffset.CODE], self._max)
        dispatcher.add([GetMinOffset.CODE], self._min)
        dispatcher.add([GetEarliestMsgStoretime.CODE], self._earliest_time)

    # ---- of groups

    def _query(self, call: Call) -> RemotingCommand | None:
        asked = QueryConsumerOffset.from_ext(call.request.ext)
        offset = self._offsets.get(asked.topic, asked.consumer_group, asked.queue_id)
        if offset is None or offset < 0:
            offset = self._first_offset(call.request.version, asked)
        if offset is None:
            return self._unknown(call)
        return call.request.reply(ext=QueryConsumerOffsetResponse(offset=offset).ext())

    def _unknown(self, call: Call) -> RemotingCommand | None:
        """Answer that there is no offset: the group may skip what is stored, so it must not be a replaced master's."""
        unknown = call.request.reply(ResponseCode.QUERY_NOT_FOUND, remark=_NOT_COMMITTED)
        if self._when_current is None:
            return unknown

        def current(failure: Exception | None) -> None:
            unsure = call.request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(failure))
            call.answer(unknown if failure is None else unsure)

        self._when_current(current)
        return None

    def _first_offset(self, version: int, asked: QueryConsumerOffset) -> int | None:
        """Return where a group without a committed offset begins: 0 in a queue that still has all its messages."""
        first, end = self._bounds(asked.topic, asked.queue_id)
        if first > 0 or (version >= VERSION_5 and (asked.set_zero_if_not_found is False or end == 0)):
            return None
        return 0

    def _update(self, call: Call) -> RemotingCommand | None:
        command, to = call.request, UpdateConsumerOffset.from_ext(call.request.ext)
        if command.version >= VERSION_5:
            if self._groups.get(to.consumer_group) is None:
                remark = f"subscription group not exist, {to.consumer_group}"
                return command.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
            if self._topics.settings(to.topic) is None:
                return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic not exist, {to.topic}")
        if command.is_oneway and self._topics.settings(to.topic) is None:
            call.leave_unanswered()
            return None  # deleted while the group reads it: a topic of this name that is made later begins at 0
        kept = None if command.is_oneway else answer_when_kept(call)
        if kept is None:
            call.leave_unanswered()
        self._offsets.commit(to.topic, to.consumer_group, to.queue_id, to.commit_offset, kept)
        return None

    # ---- of queues

    def _max(self, call: Call) -> RemotingCommand:
        asked = GetMaxOffset.from_ext(call.request.ext)
        _, end = self._bounds(asked.topic, asked.queue_id)
        return call.request.reply(ext=GetMaxOffsetResponse(offset=end).ext())

    def _min(self, call: Call) -> RemotingCommand:
        asked = GetMinOffset.from_ext(call.request.ext)
        first, _ = self._bounds(asked.topic, asked.queue_id)
        return call.request.reply(ext=GetMinOffsetResponse(offset=first).ext())

    def _earliest_time(self, call: Call) -> RemotingCommand:
        asked = GetEarliestMsgStoretime.from_ext(call.request.ext)
        first, _ = self._bounds(asked.topic, asked.queue_id)
        time_ms = self._store.store_time(asked.topic, asked.queue_id, first)
        response = GetEarliestMsgStoretimeResponse(timestamp=UNKNOWN_TIME if time_ms is None else time_ms)
        return call.request.reply(ext=response.ext())

    def _search(self, call: Call) -> RemotingCommand:
        asked = SearchOffsetByTimestamp.from_ext(call.request.ext)
        first, end = self._bounds(asked.topic, asked.queue_id)
        if first == end:
            offset = 0 if call.request.version < BOUNDARIES_FROM else end
        elif call.request.version < BOUNDARIES_FROM:
            offset = self._nearest(asked, first, end)
        elif (asked.boundary_type or "").lower() == UPPER:
            offset = max(first, self._at(asked, asked.timestamp + 1) - 1)
        else:
            offset = self._at(asked, asked.timestamp)
        return call.request.reply(ext=SearchOffsetByTimestampResponse(offset=offset).ext())

    def _nearest(self, asked: SearchOffsetByTimestamp, first: int, end: int) -> int:
        """Return the message with the nearest time, of two the earlier."""
        offset = self._at(asked, asked.timestamp)
        if not first < offset < end:
            return first if offset <= first else end - 1
        times = (self._store.store_time(asked.topic, asked.queue_id, each) for each in (offset - 1, offset))
        before, after = times
        if before is None or after is None:
            return offset
        return offset - 1 if asked.timestamp - before <= after - asked.timestamp else offset

    def _at(self, asked: SearchOffsetByTimestamp, time_ms: int) -> int:
        found = self._store.offset_at(asked.topic, asked.queue_id, min(time_ms, INT64_MAX))
        if isinstance(found, Refusal):
            raise QueueUnreadable(asked.topic, asked.queue_id, found)
        return found

    def _bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the first offset of a queue and the one after the last; 0 and 0 for an unknown queue."""
        if (fault := self._store.fault(topic, queue)) is not None:
            raise QueueUnreadable(topic, queue, fault)
        return self._store.min_offset(topic, queue), self._store.max_offset(topic, queue)
