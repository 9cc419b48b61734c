"""Offsets: of queues, of groups, by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metaq.protocols.remoting.codes import request_code
from metaq.protocols.remoting.headers.fields import Request, Response, Right
from metaq.protocols.remoting.wire_types import I32, I64

RESET_CONSUMER_CLIENT_OFFSET: Final = request_code(220, "RESET_CONSUMER_CLIENT_OFFSET")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffset(Request):
    """Return the offset that a group reads next. Unknown: code 22, or 0 where the queue is young."""

    CODE = request_code(14, "QUERY_CONSUMER_OFFSET")
    RIGHT = Right.READ_AS_GROUP
    REPEATABLE = True

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetResponse(Response):
    """The offset."""

    CODE = QueryConsumerOffset.CODE

    offset: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffset(Request):
    """Store the offset that a group reads next. Java sends it one-way."""

    CODE = request_code(15, "UPDATE_CONSUMER_OFFSET")
    RIGHT = Right.READ_AS_GROUP
    REPEATABLE = True

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetByTimestamp(Request):
    """Return an offset near a time in milliseconds.

    ``boundary_type``: ``lower`` (first message at or after it) or ``upper`` (last at or before it), from 5.1.1 on.
    Older servers return the nearest message.
    """

    CODE = request_code(29, "SEARCH_OFFSET_BY_TIMESTAMP")
    RIGHT = Right.SEND_OR_READ
    REPEATABLE = True

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetByTimestampResponse(Response):
    """The offset."""

    CODE = SearchOffsetByTimestamp.CODE

    offset: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffset(Request):
    """Return the offset after the last message of a queue."""

    CODE = request_code(30, "GET_MAX_OFFSET")
    RIGHT = Right.SEND_OR_READ
    REPEATABLE = True

    topic: str
    queue_id: I32
    committed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffsetResponse(Response):
    """The offset."""

    CODE = GetMaxOffset.CODE

    offset: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffset(Request):
    """Return the offset of the first stored message of a queue."""

    CODE = request_code(31, "GET_MIN_OFFSET")
    RIGHT = Right.SEND_OR_READ
    REPEATABLE = True

    topic: str
    queue_id: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffsetResponse(Response):
    """The offset."""

    CODE = GetMinOffset.CODE

    offset: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretime(Request):
    """Return when the first message of a queue was stored."""

    CODE = request_code(32, "GET_EARLIEST_MSG_STORETIME")
    RIGHT = Right.SEND_OR_READ
    REPEATABLE = True

    topic: str
    queue_id: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretimeResponse(Response):
    """The time in milliseconds, -1 = unknown."""

    CODE = GetEarliestMsgStoretime.CODE

    timestamp: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllConsumerOffset(Request):
    """Return the offsets of all groups, as JSON."""

    CODE = request_code(43, "GET_ALL_CONSUMER_OFFSET")
    ANSWER_BODY = "ConsumerOffsets, numbers bare"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllDelayOffset(Request):
    """Return how far each delay level has been delivered, as JSON."""

    CODE = request_code(45, "GET_ALL_DELAY_OFFSET")
    ANSWER_BODY = "DelayOffsets, numbers bare"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffset(Request):
    """Set a group's offsets of a topic by time (222), or notify a client that they were set (220)."""

    CODE = request_code(222, "INVOKE_BROKER_TO_RESET_OFFSET")
    OTHER_CODES = (RESET_CONSUMER_CLIENT_OFFSET,)
    RIGHT = Right.READ_AS_GROUP
    ANSWER_BODY = "ResetOffsets, keys are objects"

    group: str
    topic: str
    timestamp: I64
    is_force: bool
    queue_id: I32 | None = None
    offset: I64 | None = None
