"""Administrative requests to a broker: topics, groups, settings, figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metaq.protocols.remoting.codes import request_code
from metaq.protocols.remoting.headers.fields import Request, Response, Right
from metaq.protocols.remoting.wire_types import I32, I64

CLEAN_UNUSED_TOPIC: Final = request_code(316, "CLEAN_UNUSED_TOPIC")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAndCreateTopic(Request):
    """Create or change a topic. ``perm``: 4 = read, 2 = write, 1 = template."""

    CODE = request_code(17, "UPDATE_AND_CREATE_TOPIC")
    RIGHT = Right.ADMIN

    topic: str
    default_topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str
    topic_sys_flag: I32 | None = None
    order: bool
    attributes: str | None = None
    force: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicInBroker(Request):
    """Delete a topic; succeeds if it does not exist."""

    CODE = request_code(215, "DELETE_TOPIC_IN_BROKER")
    RIGHT = Right.ADMIN

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfig(Request):
    """Return the topics, as JSON. 5.x returns pages on request."""

    CODE = request_code(21, "GET_ALL_TOPIC_CONFIG")
    REPEATABLE = True
    ANSWER_BODY = "TopicConfigs"

    topic_seq: I32 | None = None
    data_version: str | None = None
    max_topic_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigResponse(Response):
    """How many topics there are (5.x)."""

    CODE = GetAllTopicConfig.CODE

    total_topic_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSystemTopicListFromBroker(Request):
    """Return the topics that every broker has, as JSON."""

    CODE = request_code(305, "GET_SYSTEM_TOPIC_LIST_FROM_BROKER")
    ANSWER_BODY = "TopicList"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicConfig(Request):
    """Return one topic, as JSON (5.x)."""

    CODE = request_code(351, "GET_TOPIC_CONFIG")
    ANSWER_BODY = "TopicConfigBody"

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBrokerConfig(Request):
    """Change settings; the body is a properties file."""

    CODE = request_code(25, "UPDATE_BROKER_CONFIG")
    RIGHT = Right.ADMIN
    BODY = "a properties file"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfig(Request):
    """Return the settings, as a properties file."""

    CODE = request_code(26, "GET_BROKER_CONFIG")
    ANSWER_BODY = "a properties file"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigResponse(Response):
    """The data version of the settings, as JSON."""

    CODE = GetBrokerConfig.CODE

    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerRuntimeInfo(Request):
    """Return figures of the running broker, as JSON."""

    CODE = request_code(28, "GET_BROKER_RUNTIME_INFO")
    REPEATABLE = True
    ANSWER_BODY = "KVTable"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMetaQBroker(Request):
    """Ask a broker whether it serves MetaQ's protocol over the same log. Only the bundled broker knows this request."""

    CODE = request_code(31001, "GET_METAQ_BROKER")


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMetaQBrokerResponse(Response):
    """``broker_id`` in MetaQ, and the ``address`` (``host:port``) for MetaQ's clients."""

    CODE = GetMetaQBroker.CODE

    broker_id: I32
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAndCreateSubscriptionGroup(Request):
    """Create or change a group; the body has it."""

    CODE = request_code(200, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP")
    RIGHT = Right.ADMIN
    BODY = "SubscriptionGroupConfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroupConfig(Request):
    """Return the groups, as JSON. 5.x returns pages on request."""

    CODE = request_code(201, "GET_ALL_SUBSCRIPTIONGROUP_CONFIG")
    ANSWER_BODY = "SubscriptionGroups"

    group_seq: I32 | None = None
    data_version: str | None = None
    max_group_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroupConfigResponse(Response):
    """How many groups there are (5.x)."""

    CODE = GetAllSubscriptionGroupConfig.CODE

    total_group_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSubscriptionGroupConfig(Request):
    """Return one group, as JSON (5.x)."""

    CODE = request_code(352, "GET_SUBSCRIPTIONGROUP_CONFIG")
    ANSWER_BODY = "SubscriptionGroupConfig"

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroup(Request):
    """Delete a group."""

    CODE = request_code(207, "DELETE_SUBSCRIPTIONGROUP")
    RIGHT = Right.ADMIN

    group_name: str
    clean_offset: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicStatsInfo(Request):
    """Return the offsets of a topic's queues, as JSON with objects for keys."""

    CODE = request_code(202, "GET_TOPIC_STATS_INFO")
    REPEATABLE = True
    ANSWER_BODY = "TopicStats, keys are objects"

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStats(Request):
    """Return a group's offsets, as JSON with objects for keys."""

    CODE = request_code(208, "GET_CONSUME_STATS")
    REPEATABLE = True
    ANSWER_BODY = "ConsumeStats, keys are objects"

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicConsumeByWho(Request):
    """Return the groups that read a topic, as JSON."""

    CODE = request_code(300, "QUERY_TOPIC_CONSUME_BY_WHO")
    ANSWER_BODY = "GroupList"

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAndCreateTopicList(Request):
    """Create or change topics; the body has them (5.x)."""

    CODE = request_code(18, "UPDATE_AND_CREATE_TOPIC_LIST")
    RIGHT = Right.ADMIN
    BODY = "TopicConfigList"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAndCreateSubscriptionGroupList(Request):
    """Create or change groups; the body has them (5.x)."""

    CODE = request_code(225, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST")
    RIGHT = Right.ADMIN
    BODY = "SubscriptionGroupList"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewBrokerStatsData(Request):
    """Return a figure of the last minute, hour and day, as JSON. ``stats_key``: a topic, ``topic@group``, a cluster."""

    CODE = request_code(315, "VIEW_BROKER_STATS_DATA")
    ANSWER_BODY = "BrokerStats"

    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConsumeStats(Request):
    """Return the offsets of all groups, as JSON; with ``is_order`` those in ordered topics only."""

    CODE = request_code(317, "GET_BROKER_CONSUME_STATS")
    ANSWER_BODY = "ConsumeStatsList, keys are objects"

    is_order: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueue(Request):
    """Return ``count`` entries of a queue from offset ``index`` on, as JSON."""

    CODE = request_code(321, "QUERY_CONSUME_QUEUE")
    RIGHT = Right.READ
    ANSWER_BODY = "QueueEntries"

    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllProducerInfo(Request):
    """Return the producers of all groups, as JSON."""

    CODE = request_code(328, "GET_ALL_PRODUCER_INFO")
    ANSWER_BODY = "ProducerTableInfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanExpiredConsumeQueue(Request):
    """Remove index entries of messages that were removed."""

    CODE = request_code(306, "CLEAN_EXPIRED_CONSUMEQUEUE")
    OTHER_CODES = (CLEAN_UNUSED_TOPIC,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteExpiredCommitLog(Request):
    """Remove expired messages now."""

    CODE = request_code(329, "DELETE_EXPIRED_COMMITLOG")
    RIGHT = Right.ADMIN


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerHaStatus(Request):
    """Return the state of the copies, as JSON (5.x)."""

    CODE = request_code(907, "GET_BROKER_HA_STATUS")
    ANSWER_BODY = "HARuntimeInfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAndCreateAclConfig(Request):
    """Create or change an account (4.x). Permissions are lists with commas, such as ``orders=PUB|SUB``."""

    CODE = request_code(50, "UPDATE_AND_CREATE_ACL_CONFIG")
    RIGHT = Right.ADMIN

    access_key: str
    secret_key: str
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclConfig(Request):
    """Delete an account (4.x)."""

    CODE = request_code(51, "DELETE_ACL_CONFIG")
    RIGHT = Right.ADMIN

    access_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerClusterAclInfo(Request):
    """Return the versions of the files of accounts (4.x)."""

    CODE = request_code(52, "GET_BROKER_CLUSTER_ACL_INFO")
    RIGHT = Right.ADMIN


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerClusterAclInfoResponse(Response):
    """Data versions as JSON: of the first file, and of all by path."""

    CODE = GetBrokerClusterAclInfo.CODE

    broker_name: str
    broker_addr: str
    cluster_name: str
    version: str
    all_acl_file_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateGlobalWhiteAddrsConfig(Request):
    """Change the addresses that need no account (4.x): a list with commas."""

    CODE = request_code(53, "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG")
    RIGHT = Right.ADMIN

    global_white_addrs: str
    acl_file_full_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerClusterAclConfig(Request):
    """Return the accounts, as JSON (4.x)."""

    CODE = request_code(54, "GET_BROKER_CLUSTER_ACL_CONFIG")
    RIGHT = Right.ADMIN
