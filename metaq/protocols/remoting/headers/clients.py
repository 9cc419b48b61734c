"""Clients and groups: membership, locks of queues, and a broker's requests to clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from metaq.protocols.remoting.codes import RequestCode
from metaq.protocols.remoting.headers.fields import Request, Response
from metaq.protocols.remoting.wire_types import I32, I64, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartBeat(Request):
    """Announce a client and its groups to a broker; the body has them."""

    CODE = RequestCode.HEART_BEAT


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartBeatResponse(Response):
    """The fields of a broker of 5.x; one of 4.x sends none."""

    CODE = RequestCode.HEART_BEAT

    is_support_heart_beat_v2: Annotated[bool | None, Wire("IS_SUPPORT_HEART_BEAT_V2")] = None
    is_sub_change: Annotated[bool | None, Wire("IS_SUB_CHANGE")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClient(Request):
    """Announce that a client leaves one group of each kind. C++ sends an empty name for the kind that it does not
    leave.
    """

    CODE = RequestCode.UNREGISTER_CLIENT

    client_id: Annotated[str, Wire("clientID")]
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckClientConfig(Request):
    """Compile the subscription in the body."""

    CODE = RequestCode.CHECK_CLIENT_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListByGroup(Request):
    """Return the ids of a group's members, as JSON; code 1 if there are none."""

    CODE = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConsumerIdsChanged(Request):
    """Notify a client that the members of its group changed. From a broker, one-way."""

    CODE = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchMq(Request):
    """Lock the queues in the body for a member, except queues that another member has locked."""

    CODE = RequestCode.LOCK_BATCH_MQ


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockBatchMq(Request):
    """Unlock the queues in the body."""

    CODE = RequestCode.UNLOCK_BATCH_MQ


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerConnectionList(Request):
    """Return the connections and subscriptions of a group, as JSON."""

    CODE = RequestCode.GET_CONSUMER_CONNECTION_LIST

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetProducerConnectionList(Request):
    """Return the connections of a producer group, as JSON."""

    CODE = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerRunningInfo(Request):
    """Ask a client, through its broker, what it is doing."""

    CODE = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectly(Request):
    """Have a client consume one message at once, through its broker."""

    CODE = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatusFromClient(Request):
    """Ask a client for its offsets of a topic. From a broker."""

    CODE = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

    topic: str
    group: str
    client_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReplyMessage(Request):
    """Give a client the reply to a request that it sent; the body is the reply's. From a broker.

    ``properties`` have the CORRELATION_ID of the request. Hosts are ``ip:port``, times are in milliseconds.
    """

    CODE = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT

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
