"""Administrative requests to a broker: topics, groups, settings, figures."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.protocols.remoting.codes import RequestCode
from metaq.protocols.remoting.headers.fields import Request, Response
from metaq.protocols.remoting.wire_types import I32


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
