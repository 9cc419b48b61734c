"""Administrative requests to a broker: its figures, the figures of topics and their queues, consumer groups and
their members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.names import is_system_name
from metaq.backends.rocketmq.session import Session
from metaq.protocols.remoting.bodies.administration import BrokerStats
from metaq.protocols.remoting.bodies.groups import (
    ClientConnection,
    ConsumerConnection,
    ConsumerList,
    SubscriptionGroups,
)
from metaq.protocols.remoting.bodies.offsets import ConsumeStats, TopicOffset, TopicStats
from metaq.protocols.remoting.bodies.routes import KVTable
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.administration import (
    GetAllSubscriptionGroupConfig,
    GetBrokerRuntimeInfo,
    GetConsumeStats,
    GetTopicStatsInfo,
    ViewBrokerStatsData,
)
from metaq.protocols.remoting.headers.clients import GetConsumerConnectionList, GetConsumerListByGroup

_BUILT_IN: Final = frozenset(
    (
        *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL"),
        *("CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_SYS_RMQ_TRANS", "CID_DefaultHeartBeatSyncerTopic"),
    )
)
"""Groups that exist at every broker."""

NOT_COUNTED_YET: Final = "java.util.NoSuchElementException"
"""Start of an error text of RocketMQ 4.9 and 5.x in their first second, while their rates have no samples yet."""

PUT_COUNT: Final = "TOPIC_PUT_NUMS"
_NOT_COUNTED: Final = "not exist"
"""Part of the answer about a topic that has got no message since the broker started."""

_PAUSES_S: Final = (0.3, 0.6, 1.2)


def ask_groups(session: Session, broker_name: str) -> list[str]:
    """Return the groups that a broker knows, without RocketMQ's own.

    Raises:
        RequestRefused, AccessDenied: The broker does not report it (a proxy).
        ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked.
    """
    response = session.ask(to_request(GetAllSubscriptionGroupConfig(), broker_name=broker_name), "the list of groups")
    names = SubscriptionGroups.from_json(response.body).subscription_group_table
    return sorted(name for name in names if name not in _BUILT_IN and not is_system_name(name))


def ask_topics_of(session: Session, broker_name: str, group: str) -> set[str]:
    """Return the topics for which a broker has offsets of ``group``. Raises as ``ask_groups``."""
    command = to_request(GetConsumeStats(consumer_group=group), broker_name=broker_name)
    response = session.ask(command, f"what group {group} has read")
    return {queue.topic for queue in ConsumeStats.from_json(response.body).offset_table}


def ask_members(session: Session, broker_name: str, group: str) -> list[str]:
    """Return the ids of the members of ``group`` that a broker knows. Raises as ``ask_groups``."""
    command = to_request(GetConsumerListByGroup(consumer_group=group), broker_name=broker_name)
    response = session.call(command, f"the members of group {group}")
    if response.code == ResponseCode.SYSTEM_ERROR:
        return []  # brokers report an empty group this way
    return list(ConsumerList.from_json(session.accepted(response, command, "members").body).consumer_id_list)


def ask_connections(session: Session, broker_name: str, group: str) -> list[ClientConnection]:
    """Return the running consumers of ``group`` that a broker knows, with address, language and version.

    Raises as ``ask_groups``.
    """
    command = to_request(GetConsumerConnectionList(consumer_group=group), broker_name=broker_name)
    response = session.call(command, f"the consumers of group {group}")
    if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return []
    return list(ConsumerConnection.from_json(session.accepted(response, command, "consumers").body).connection_set)


def broker_figures(session: Session) -> dict[str, str]:
    """Return the figures of the running broker under RocketMQ's names; waits for a broker that has just started.

    Raises:
        RequestRefused, AccessDenied: The broker does not report them (a proxy).
        FieldError: The answer is not a table of figures.
        ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            response = session.ask(to_request(GetBrokerRuntimeInfo()), "the figures of the broker")
            break
        except RequestRefused as error:
            if pause_s is None or not error.text.startswith(NOT_COUNTED_YET):
                raise
            session.clock.sleep(pause_s)
    return dict(KVTable.from_json(response.body).table)


def put_rates(session: Session, topics: Sequence[str], broker_name: str) -> list[float | None]:
    """Return how many messages a second each of ``topics`` (full names) got in the last minute; ``None``: not reported.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: The broker could not be asked.
    """
    headers = [ViewBrokerStatsData(stats_name=PUT_COUNT, stats_key=topic) for topic in topics]
    commands = [to_request(header, broker_name=broker_name) for header in headers]
    return [_rate(response) for response in session.exchange(commands, "the rates of topics")]


def _rate(response: RemotingCommand) -> float | None:
    if response.code == ResponseCode.SYSTEM_ERROR and _NOT_COUNTED in (response.remark or ""):
        return 0.0
    return None if response.code else BrokerStats.from_json(response.body).stats_minute.tps


def queue_figures(session: Session, topic: str, broker_name: str) -> dict[int, TopicOffset]:
    """Return queue id -> offsets and time of the last message, for the broker's queues of ``topic`` (full name).

    Raises as ``broker_figures``.
    """
    command = to_request(GetTopicStatsInfo(topic=topic), broker_name=broker_name)
    response = session.ask(command, f"the figures of topic {topic}")
    table = TopicStats.from_json(response.body).offset_table
    return {queue.queue_id: offsets for queue, offsets in sorted(table.items(), key=lambda one: one[0].queue_id)}
