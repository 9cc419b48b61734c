"""Reading messages: by position, by key, by id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from metaq.protocols.remoting.codes import request_code
from metaq.protocols.remoting.headers.fields import Request, Response, Right
from metaq.protocols.remoting.wire_types import I32, I64, Wire

COMMIT_OFFSET: Final = 1
"""Bit of a pull's ``sys_flag``: store ``commit_offset`` for the group."""
SUSPEND: Final = 2
"""Bit of a pull's ``sys_flag``: wait for a message if there is none."""
SUBSCRIPTION: Final = 4
"""Bit of a pull's ``sys_flag``: the subscription is in this request, and the group needs no member."""
CLASS_FILTER: Final = 8
"""Bit of a pull's ``sys_flag`` that no server uses any more."""
LITE_PULL: Final = 16
"""Bit of a pull's ``sys_flag`` with which a Java client of 5.x uses code 361."""

LITE_PULL_MESSAGE: Final = request_code(361, "LITE_PULL_MESSAGE")


@dataclass(slots=True, kw_only=True)
class PullMessage(Request):
    """Read up to ``max_msg_nums`` messages of a queue from ``queue_offset`` on. Servers return 32 at most.

    The body of the response is records, back to back. The header is never changed; frozen it would take three times as
    long to make.
    """

    CODE = request_code(11, "PULL_MESSAGE")
    RIGHT = Right.READ_AS_GROUP
    REPEATABLE = True
    ANSWER_BODY = "[records](#stored-records)"
    OTHER_CODES = (LITE_PULL_MESSAGE,)

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    subscription: str | None = None
    sub_version: I64
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    proxy_forward_client_id: Annotated[str | None, Wire("proxyFrowardClientId")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageResponse(Response):
    """The next offset to read, and the queue's range: from ``min_offset`` to below ``max_offset``.

    ``suggest_which_broker_id``: 0 = the master, 1 = a slave.
    """

    CODE = PullMessage.CODE

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFrames(Request):
    """Read messages of a queue from ``queue_offset`` on as they are stored. Only the bundled broker knows this request.

    Up to ``max_msg_nums`` messages, in at most ``max_msg_bytes`` unless a single one is larger. The body of the
    response is frames, back to back.
    """

    CODE = request_code(31002, "PULL_FRAMES")
    RIGHT = Right.READ_AS_GROUP
    ANSWER_BODY = "[frames](#frames-instead-of-records)"

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    max_msg_bytes: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFramesResponse(Response):
    """The messages in the response, and fields that their frames do not contain.

    The messages have the queue offsets from ``begin_offset`` to below ``next_begin_offset``; the queue has those from
    ``min_offset`` to below ``max_offset``. The first frame is at ``physical_offset``, the others follow it without
    gaps. ``store_host`` is 8 or 20 bytes in hexadecimal digits, ``store_timestamp`` (ms) the store time of messages
    whose ids contain none.
    """

    CODE = PullFrames.CODE

    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    begin_offset: I64
    physical_offset: I64
    store_host: str
    store_timestamp: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessage(Request):
    """Find messages of ``topic`` by one of their keys, or with ``unique_key`` by their UNIQ_KEY."""

    CODE = request_code(12, "QUERY_MESSAGE")
    RIGHT = Right.READ
    REPEATABLE = True
    ANSWER_BODY = "[records](#stored-records)"

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    unique_key: Annotated[bool | None, Wire("_UNIQUE_KEY_QUERY")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponse(Response):
    """The end of the index of keys: time in milliseconds, and position in the broker's log."""

    CODE = QueryMessage.CODE

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageById(Request):
    """Read the message at ``offset`` of the broker's log, which is part of its id."""

    CODE = request_code(33, "VIEW_MESSAGE_BY_ID")
    REPEATABLE = True
    ANSWER_BODY = "[a record](#stored-records)"

    offset: I64
    topic: str | None = None
