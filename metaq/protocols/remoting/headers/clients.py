"""Clients and groups: membership, locks of queues, and a broker's requests to clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from metaq.protocols.remoting.codes import request_code
from metaq.protocols.remoting.headers.fields import Request, Response, Right
from metaq.protocols.remoting.wire_types import I32, I64, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartBeat(Request):
    """Announce a client and its groups to a broker; the body has them."""

    CODE = request_code(34, "HEART_BEAT")
    RIGHT = Right.IN_BODY
    REPEATABLE = True
    BODY = "HeartbeatData"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartBeatResponse(Response):
    """The fields of a broker of 5.x; one of 4.x sends none."""

    CODE = HeartBeat.CODE

    is_support_heart_beat_v2: Annotated[bool | None, Wire("IS_SUPPORT_HEART_BEAT_V2")] = None
    is_sub_change: Annotated[bool | None, Wire("IS_SUB_CHANGE")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClient(Request):
    """Announce that a client leaves one group of each kind. C++ sends an empty name for the kind that it does not
    leave.
    """

    CODE = request_code(35, "UNREGISTER_CLIENT")
    RIGHT = Right.GROUP

    client_id: Annotated[str, Wire("clientID")]
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckClientConfig(Request):
    """Compile the subscription in the body."""

    CODE = request_code(46, "CHECK_CLIENT_CONFIG")
    RIGHT = Right.IN_BODY
    REPEATABLE = True
    BODY = "CheckClientRequestBody"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListByGroup(Request):
    """Return the ids of a group's members, as JSON; code 1 if there are none."""

    CODE = request_code(38, "GET_CONSUMER_LIST_BY_GROUP")
    RIGHT = Right.GROUP
    REPEATABLE = True
    ANSWER_BODY = "ConsumerList"

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConsumerIdsChanged(Request):
    """Notify a client that the members of its group changed. From a broker, one-way."""

    CODE = request_code(40, "NOTIFY_CONSUMER_IDS_CHANGED")

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchMq(Request):
    """Lock the queues in the body for a member, except queues that another member has locked."""

    CODE = request_code(41, "LOCK_BATCH_MQ")
    RIGHT = Right.IN_BODY
    BODY = "LockBatchRequestBody"
    ANSWER_BODY = "LockBatchResponseBody"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockBatchMq(Request):
    """Unlock the queues in the body."""

    CODE = request_code(42, "UNLOCK_BATCH_MQ")
    RIGHT = Right.IN_BODY
    BODY = "LockBatchRequestBody"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerConnectionList(Request):
    """Return the connections and subscriptions of a group, as JSON."""

    CODE = request_code(203, "GET_CONSUMER_CONNECTION_LIST")
    ANSWER_BODY = "ConsumerConnection"

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetProducerConnectionList(Request):
    """Return the connections of a producer group, as JSON."""

    CODE = request_code(204, "GET_PRODUCER_CONNECTION_LIST")
    ANSWER_BODY = "ProducerConnection"

    producer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerRunningInfo(Request):
    """Ask a client, through its broker, what it is doing."""

    CODE = request_code(307, "GET_CONSUMER_RUNNING_INFO")
    RIGHT = Right.GROUP

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectly(Request):
    """Have a client consume one message at once, through its broker."""

    CODE = request_code(309, "CONSUME_MESSAGE_DIRECTLY")
    RIGHT = Right.GROUP

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReplyMessage(Request):
    """Give a client the reply to a request that it sent; the body is the reply's. From a broker.

    ``properties`` have the CORRELATION_ID of the request. Hosts are ``ip:port``, times are in milliseconds.
    """

    CODE = request_code(326, "PUSH_REPLY_MESSAGE_TO_CLIENT")
    BODY = "the reply"

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: I64
