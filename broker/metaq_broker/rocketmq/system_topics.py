"""The topics that RocketMQ's clients expect of every broker, and the names that belong to one group.

Source: docs/rocketmq-broker.md, "System topics".
"""

from __future__ import annotations

from typing import Final

from metaq_broker.log.engine.topics import INHERIT, READ, WRITE, TopicSettings

TEMPLATE: Final = "TBW102"
"""Clients name it when they send to a topic that may not exist: others are made like it."""

SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
HALF: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OPERATIONS: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMERS: Final = "rmq_sys_wheel_timer"
CHECKED_TOO_OFTEN: Final = "TRANS_CHECK_MAX_TIME_TOPIC"

RETRY_PREFIX: Final = "%RETRY%"
DEAD_PREFIX: Final = "%DLQ%"

NOT_WRITTEN_BY_CLIENTS: Final = frozenset({SCHEDULE, HALF, HALF_OPERATIONS, TIMERS, "OFFSET_MOVED_EVENT"}) | {
    "SELF_TEST_TOPIC",
    CHECKED_TOO_OFTEN,
}
"""Sends to these are refused (code 16)."""

OF_MANY_TOPICS: Final = frozenset({SCHEDULE, HALF, TIMERS, CHECKED_TOO_OFTEN})
"""Topics with messages of all topics: REAL_TOPIC is each message's target."""

INTERNAL: Final = frozenset({HALF_OPERATIONS, TIMERS})
"""Topics that are hidden from name servers and administrators."""

COPIED_LAST: Final = frozenset({HALF_OPERATIONS})
"""Topics that slaves copy last, because their messages refer to messages of others."""

LISTED_WHEN_STORED: Final = frozenset({HALF, CHECKED_TOO_OFTEN})
"""And of these when there are messages."""

GROUPS: Final = frozenset(
    {"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY"}
    | {"CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"}
)
"""Groups that tools expect of every broker."""

_ALL: Final = READ | WRITE | INHERIT


def built_in_topics(
    broker_name: str, cluster_name: str, *, create_topics: bool, delay_levels: int = 18
) -> dict[str, TopicSettings]:
    """Return the system topics of a broker; the template only where topics may be made by sending to them."""
    topics = {
        "SELF_TEST_TOPIC": TopicSettings(1, 1),
        "BenchmarkTest": TopicSettings(1024, 1024),
        cluster_name: TopicSettings(16, 16, _ALL),
        broker_name: TopicSettings(1, 1, _ALL),
        "OFFSET_MOVED_EVENT": TopicSettings(1, 1),
        SCHEDULE: TopicSettings(delay_levels, delay_levels),
        TIMERS: TopicSettings(1, 1),
        HALF: TopicSettings(1, 1),
        HALF_OPERATIONS: TopicSettings(1, 1),
        CHECKED_TOO_OFTEN: TopicSettings(1, 1),
        f"{cluster_name}_REPLY_TOPIC": TopicSettings(1, 1),
    }
    if create_topics:
        topics[TEMPLATE] = TopicSettings(8, 8, _ALL)
    return topics


HIDDEN_PREFIXES: Final = (RETRY_PREFIX, DEAD_PREFIX)
"""Topics that begin so are left out of lists for users of MetaQ."""


def retry_topic(group: str) -> str:
    """Return the topic of messages that a group will get once more."""
    return RETRY_PREFIX + group


def is_of_one_group(topic: str) -> bool:
    """Return whether this is a group's retry or dead letter topic."""
    return topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
