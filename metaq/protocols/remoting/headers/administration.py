"""Administrative requests to a broker: topics, groups, settings, figures."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.protocols.remoting.codes import RequestCode
from metaq.protocols.remoting.headers.fields import Request, Response
from metaq.protocols.remoting.wire_types import I32, I64


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAndCreateTopic(Request):
    """Create or change a topic. ``perm``: 4 = read, 2 = write, 1 = template."""

    CODE = RequestCode.UPDATE_AND_CREATE_TOPIC

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

    CODE = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfig(Request):
    """Return the topics, as JSON. 5.x returns pages on request."""

    CODE = RequestCode.GET_ALL_TOPIC_CONFIG

    topic_seq: I32 | None = None
    data_version: str | None = None
    max_topic_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigResponse(Response):
    """How many topics there are (5.x)."""

    CODE = RequestCode.GET_ALL_TOPIC_CONFIG

    total_topic_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSystemTopicListFromBroker(Request):
    """Return the topics that every broker has, as JSON."""

    CODE = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicConfig(Request):
    """Return one topic, as JSON (5.x)."""

    CODE = RequestCode.GET_TOPIC_CONFIG

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBrokerConfig(Request):
    """Change settings; the body is a properties file."""

    CODE = RequestCode.UPDATE_BROKER_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfig(Request):
    """Return the settings, as a properties file."""

    CODE = RequestCode.GET_BROKER_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigResponse(Response):
    """The data version of the settings, as JSON."""

    CODE = RequestCode.GET_BROKER_CONFIG

    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerRuntimeInfo(Request):
    """Return figures of the running broker, as JSON."""

    CODE = RequestCode.GET_BROKER_RUNTIME_INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMetaQBroker(Request):
    """Ask a broker whether it serves MetaQ's protocol over the same log. Only the bundled broker knows this request."""

    CODE = RequestCode.GET_METAQ_BROKER


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMetaQBrokerResponse(Response):
    """``broker_id`` in MetaQ, and the ``address`` (``host:port``) for MetaQ's clients."""

    CODE = RequestCode.GET_METAQ_BROKER

    broker_id: I32
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAndCreateSubscriptionGroup(Request):
    """Create or change a group; the body has it."""

    CODE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroupConfig(Request):
    """Return the groups, as JSON. 5.x returns pages on request."""

    CODE = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    group_seq: I32 | None = None
    data_version: str | None = None
    max_group_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroupConfigResponse(Response):
    """How many groups there are (5.x)."""

    CODE = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    total_group_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSubscriptionGroupConfig(Request):
    """Return one group, as JSON (5.x)."""

    CODE = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroup(Request):
    """Delete a group."""

    CODE = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group_name: str
    clean_offset: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicStatsInfo(Request):
    """Return the offsets of a topic's queues, as JSON with objects for keys."""

    CODE = RequestCode.GET_TOPIC_STATS_INFO

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStats(Request):
    """Return a group's offsets, as JSON with objects for keys."""

    CODE = RequestCode.GET_CONSUME_STATS

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicConsumeByWho(Request):
    """Return the groups that read a topic, as JSON."""

    CODE = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAndCreateTopicList(Request):
    """Create or change topics; the body has them (5.x)."""

    CODE = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAndCreateSubscriptionGroupList(Request):
    """Create or change groups; the body has them (5.x)."""

    CODE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewBrokerStatsData(Request):
    """Return a figure of the last minute, hour and day, as JSON. ``stats_key``: a topic, ``topic@group``, a cluster."""

    CODE = RequestCode.VIEW_BROKER_STATS_DATA

    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConsumeStats(Request):
    """Return the offsets of all groups, as JSON; with ``is_order`` those in ordered topics only."""

    CODE = RequestCode.GET_BROKER_CONSUME_STATS

    is_order: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueue(Request):
    """Return ``count`` entries of a queue from offset ``index`` on, as JSON."""

    CODE = RequestCode.QUERY_CONSUME_QUEUE

    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllProducerInfo(Request):
    """Return the producers of all groups, as JSON."""

    CODE = RequestCode.GET_ALL_PRODUCER_INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanExpiredConsumeQueue(Request):
    """Remove what is left of the index of removed messages."""

    CODE = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
    OTHER_CODES = (RequestCode.CLEAN_UNUSED_TOPIC,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteExpiredCommitLog(Request):
    """Remove messages whose time is over now."""

    CODE = RequestCode.DELETE_EXPIRED_COMMITLOG


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerHaStatus(Request):
    """Return the state of the copies, as JSON (5.x)."""

    CODE = RequestCode.GET_BROKER_HA_STATUS


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAndCreateAclConfig(Request):
    """Create or change an account (4.x). Permissions are lists with commas, such as ``orders=PUB|SUB``."""

    CODE = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG

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

    CODE = RequestCode.DELETE_ACL_CONFIG

    access_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerClusterAclInfo(Request):
    """Return the versions of the files of accounts (4.x)."""

    CODE = RequestCode.GET_BROKER_CLUSTER_ACL_INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerClusterAclInfoResponse(Response):
    """Data versions as JSON: of the first file, and of all by path."""

    CODE = RequestCode.GET_BROKER_CLUSTER_ACL_INFO

    broker_name: str
    broker_addr: str
    cluster_name: str
    version: str
    all_acl_file_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateGlobalWhiteAddrsConfig(Request):
    """Change the addresses that need no account (4.x): a list with commas."""

    CODE = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG

    global_white_addrs: str
    acl_file_full_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerClusterAclConfig(Request):
    """Return the accounts, as JSON (4.x)."""

    CODE = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
