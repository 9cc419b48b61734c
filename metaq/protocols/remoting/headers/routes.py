"""Requests to a name server: routes, registrations, lists, key-value pairs, write permission."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.protocols.remoting.codes import request_code
from metaq.protocols.remoting.headers.fields import Request, Response, Right
from metaq.protocols.remoting.wire_types import I32, I64


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteInfoByTopic(Request):
    """Return the brokers of a topic and their queues, as JSON; code 17 if there are none."""

    CODE = request_code(105, "GET_ROUTEINFO_BY_TOPIC")
    RIGHT = Right.OPEN
    REPEATABLE = True
    ANSWER_BODY = "TopicRouteData"

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(Request):
    """Register a broker's address and topics; the body has them.

    ``broker_id``: 0 = the master. ``body_crc32``: of the body as sent, without its top bit; 0 = unchecked.
    """

    CODE = request_code(103, "REGISTER_BROKER")
    RIGHT = Right.ADMIN
    BODY = "a [registration](#registration)"
    ANSWER_BODY = "KVTable, or nothing"

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool | None = None
    body_crc32: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerResponse(Response):
    """The master's addresses, for a slave."""

    CODE = RegisterBroker.CODE

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker(Request):
    """Forget a broker."""

    CODE = request_code(104, "UNREGISTER_BROKER")
    RIGHT = Right.ADMIN

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersion(Request):
    """Return whether the name server's topics differ from the data version in the body."""

    CODE = request_code(322, "QUERY_DATA_VERSION")
    RIGHT = Right.OPEN
    BODY = "DataVersion"
    ANSWER_BODY = "DataVersion"

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersionResponse(Response):
    """Whether they differ; the body is the name server's data version."""

    CODE = QueryDataVersion.CODE

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PutKVConfig(Request):
    """Store a value under a key of a namespace."""

    CODE = request_code(100, "PUT_KV_CONFIG")
    RIGHT = Right.ADMIN

    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfig(Request):
    """Return the value of a key; code 22 if there is none."""

    CODE = request_code(101, "GET_KV_CONFIG")
    RIGHT = Right.OPEN
    REPEATABLE = True

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfigResponse(Response):
    """The value."""

    CODE = GetKVConfig.CODE

    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteKVConfig(Request):
    """Forget a key."""

    CODE = request_code(102, "DELETE_KV_CONFIG")
    RIGHT = Right.ADMIN

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVListByNamespace(Request):
    """Return a namespace as JSON; code 22 if there is none."""

    CODE = request_code(219, "GET_KVLIST_BY_NAMESPACE")
    RIGHT = Right.OPEN
    REPEATABLE = True
    ANSWER_BODY = "KVTable"

    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBroker(Request):
    """Take write permission from all topics of a broker, until it registers a change."""

    CODE = request_code(205, "WIPE_WRITE_PERM_OF_BROKER")
    RIGHT = Right.ADMIN

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBrokerResponse(Response):
    """Number of topics changed."""

    CODE = WipeWritePermOfBroker.CODE

    wipe_topic_count: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermOfBroker(Request):
    """Give write permission to all topics of a broker."""

    CODE = request_code(327, "ADD_WRITE_PERM_OF_BROKER")
    RIGHT = Right.ADMIN

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermOfBrokerResponse(Response):
    """Number of topics changed."""

    CODE = AddWritePermOfBroker.CODE

    add_topic_count: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicsByCluster(Request):
    """Return the topics of a cluster, as JSON."""

    CODE = request_code(224, "GET_TOPICS_BY_CLUSTER")
    RIGHT = Right.OPEN
    REPEATABLE = True
    ANSWER_BODY = "TopicList"

    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicInNamesrv(Request):
    """Forget a topic's route, or with ``cluster_name`` (5.x) the part of it in a cluster."""

    CODE = request_code(216, "DELETE_TOPIC_IN_NAMESRV")
    RIGHT = Right.ADMIN

    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerClusterInfo(Request):
    """Return all brokers and clusters, as JSON with unquoted number keys."""

    CODE = request_code(106, "GET_BROKER_CLUSTER_INFO")
    RIGHT = Right.OPEN
    REPEATABLE = True
    ANSWER_BODY = "ClusterInfo, numbers bare"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicListFromNameserver(Request):
    """Return all topics, as JSON."""

    CODE = request_code(206, "GET_ALL_TOPIC_LIST_FROM_NAMESERVER")
    RIGHT = Right.OPEN
    REPEATABLE = True
    ANSWER_BODY = "TopicList"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSystemTopicListFromNs(Request):
    """Return the names of clusters and brokers, which are topics too, as JSON."""

    CODE = request_code(304, "GET_SYSTEM_TOPIC_LIST_FROM_NS")
    RIGHT = Right.OPEN
    ANSWER_BODY = "TopicList"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetUnitTopicList(Request):
    """Return the topics with the unit flag, as JSON."""

    CODE = request_code(311, "GET_UNIT_TOPIC_LIST")
    ANSWER_BODY = "TopicList"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetHasUnitSubTopicList(Request):
    """Return the topics with the unit subscription flag, as JSON."""

    CODE = request_code(312, "GET_HAS_UNIT_SUB_TOPIC_LIST")
    ANSWER_BODY = "TopicList"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetHasUnitSubUnunitTopicList(Request):
    """Return the topics with the unit subscription flag and without the unit flag, as JSON."""

    CODE = request_code(313, "GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST")
    ANSWER_BODY = "TopicList"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateNamesrvConfig(Request):
    """Change settings; the body is a properties file."""

    CODE = request_code(318, "UPDATE_NAMESRV_CONFIG")
    RIGHT = Right.ADMIN
    BODY = "a properties file"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetNamesrvConfig(Request):
    """Return the settings, as a properties file."""

    CODE = request_code(319, "GET_NAMESRV_CONFIG")
    ANSWER_BODY = "a properties file"
