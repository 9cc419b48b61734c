"""The topics that RocketMQ's clients expect of every broker, and the names that belong to one group.

Source: docs/rocketmq-broker.md, "System topics".
"""

from __future__ import annotations

from typing import Final

from metaq.formats.topic_names import RETRY_PREFIX, TEMPLATE_TOPIC
from metaq_broker.log.engine.topics import INHERIT, READ, WRITE, ServedTopic

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
NOTE_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"

NOT_WRITTEN_BY_CLIENTS: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, NOTE_TOPIC, TIMER_TOPIC, GIVEN_UP_TOPIC, "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC"}
)
"""Sends to these are refused (code 16)."""

OF_MANY_TOPICS: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC, GIVEN_UP_TOPIC})
"""Topics with messages of all topics: REAL_TOPIC is each message's target."""

INTERNAL: Final = frozenset({NOTE_TOPIC, TIMER_TOPIC})
"""Topics that are hidden from name servers and administrators."""

COPIED_LAST: Final = frozenset({NOTE_TOPIC})
"""Topics that slaves copy last, because their messages refer to messages of others."""

LISTED_WHEN_STORED: Final = frozenset({HALF_TOPIC, GIVEN_UP_TOPIC})
"""And of these when there are messages."""

GROUPS: Final = frozenset(
    {"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY"}
    | {"CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"}
)
"""Groups that tools expect of every broker."""

_ALL: Final = READ | WRITE | INHERIT


def built_in_topics(
    broker_name: str, cluster_name: str, *, create_topics: bool, delay_levels: int = 18, trace_topic: str | None = None
) -> dict[str, ServedTopic]:
    """Return the system topics of a broker; the template only where topics may be made by sending to them.

    ``trace_topic``: where clients send their traces, ``None`` without such a topic.
    """
    topics = {
        "SELF_TEST_TOPIC": ServedTopic(1, 1),
        "BenchmarkTest": ServedTopic(1024, 1024),
        cluster_name: ServedTopic(16, 16, _ALL),
        broker_name: ServedTopic(1, 1, _ALL),
        "OFFSET_MOVED_EVENT": ServedTopic(1, 1),
        SCHEDULE_TOPIC: ServedTopic(delay_levels, delay_levels),
        TIMER_TOPIC: ServedTopic(1, 1),
        HALF_TOPIC: ServedTopic(1, 1),
        NOTE_TOPIC: ServedTopic(1, 1),
        GIVEN_UP_TOPIC: ServedTopic(1, 1),
        f"{cluster_name}_REPLY_TOPIC": ServedTopic(1, 1),
    }
    if trace_topic is not None:
        topics[trace_topic] = ServedTopic(1, 1)
    if create_topics:
        topics[TEMPLATE_TOPIC] = ServedTopic(8, 8, _ALL)
    return topics


def retry_topic(group: str) -> str:
    """Return the topic of messages that a group will get once more."""
    return RETRY_PREFIX + group
