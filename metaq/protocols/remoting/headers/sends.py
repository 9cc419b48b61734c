"""Sending messages, and sending them back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from metaq.protocols.remoting.codes import request_code
from metaq.protocols.remoting.headers.fields import Request, Response, Right
from metaq.protocols.remoting.wire_types import I32, I64, Wire

SEND_MESSAGE: Final = request_code(10, "SEND_MESSAGE")
SEND_BATCH_MESSAGE: Final = request_code(320, "SEND_BATCH_MESSAGE")
SEND_REPLY_MESSAGE: Final = request_code(324, "SEND_REPLY_MESSAGE")
SEND_REPLY_MESSAGE_V2: Final = request_code(325, "SEND_REPLY_MESSAGE_V2")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage(Request):
    """Store the body as a message, or with ``batch`` as messages: see ``metaq.formats.rocketmq.batches``.

    ``batch`` decides, not the code. ``queue_id`` below 0: the broker chooses one. ``flag`` is the application's own.
    ``born_timestamp`` is in milliseconds. ``default_topic`` is the template for an unknown topic. Java sends the
    versions with short names, 310 and 320; C++ and old clients 10. 324 and 325 are the same with a reply, which is
    pushed to the client that the property REPLY_TO_CLIENT names.
    """

    CODE = request_code(310, "SEND_MESSAGE_V2")
    RIGHT = Right.SEND
    BODY = "the message, or the [elements of a batch](#elements-of-a-batch)"
    OTHER_CODES = (SEND_MESSAGE, SEND_BATCH_MESSAGE, SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2)
    SHORT_CODES = (CODE, SEND_BATCH_MESSAGE, SEND_REPLY_MESSAGE_V2)

    producer_group: Annotated[str, Wire(short="a")]
    topic: Annotated[str, Wire(short="b")]
    default_topic: Annotated[str, Wire(short="c")]
    default_topic_queue_nums: Annotated[I32, Wire(short="d")]
    queue_id: Annotated[I32, Wire(short="e")]
    sys_flag: Annotated[I32, Wire(short="f")]
    born_timestamp: Annotated[I64, Wire(short="g")]
    flag: Annotated[I32, Wire(short="h")]
    properties: Annotated[str | None, Wire(short="i")] = None
    reconsume_times: Annotated[I32 | None, Wire(short="j")] = None
    unit_mode: Annotated[bool | None, Wire(short="k")] = None
    max_reconsume_times: Annotated[I32 | None, Wire(short="l")] = None
    batch: Annotated[bool | None, Wire(short="m")] = None
    broker_name: Annotated[str | None, Wire("bname", short="n")] = None


SEND_CODES: Final = (SendMessage.CODE, SEND_MESSAGE, SEND_BATCH_MESSAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponse(Response):
    """The position of the message. For a batch: ``msg_id`` has the ids separated by commas, ``queue_offset`` is the
    first one's.
    """

    CODE = SendMessage.CODE

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: Annotated[str | None, Wire("MSG_REGION")] = None
    trace_on: Annotated[bool | None, Wire("TRACE_ON")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSendMsgBack(Request):
    """Deliver the message at ``offset`` of the broker's log to ``group`` again, after the delay of ``delay_level``.

    0: a delay that grows with each time; below 0: to the dead letters.
    """

    CODE = request_code(36, "CONSUMER_SEND_MSG_BACK")
    RIGHT = Right.GROUP

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessage(Request):
    """Cancel a delayed message (5.x)."""

    CODE = request_code(370, "RECALL_MESSAGE")
    RIGHT = Right.SEND

    topic: str
    recall_handle: str
    producer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageResponse(Response):
    """The id of the cancelled message."""

    CODE = RecallMessage.CODE

    msg_id: str
