"""What a broker says of itself, and of the queues of a topic: what administrators ask."""

from __future__ import annotations

from metaq.backends.rocketmq.session import Session
from metaq.protocols.remoting.bodies.offsets import TopicOffset, TopicStats
from metaq.protocols.remoting.bodies.routes import KVTable
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.administration import GetBrokerRuntimeInfo, GetTopicStatsInfo


def broker_figures(session: Session) -> dict[str, str]:
    """Return the figures of the running broker, by RocketMQ's names for them.

    Raises:
        RequestRefused, AccessDenied: It does not say, as a proxy does not.
        FieldError: The answer is no such table.
        ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked.
    """
    response = session.ask(to_request(GetBrokerRuntimeInfo()), "the figures of the broker")
    return dict(KVTable.from_json(response.body).table)


def queue_figures(session: Session, topic: str, broker_name: str) -> dict[int, TopicOffset]:
    """Return what the broker's queues of ``topic``, its full name, hold: queue id -> offsets and the last time.

    Raises as ``broker_figures``.
    """
    command = to_request(GetTopicStatsInfo(topic=topic), broker_name=broker_name)
    response = session.ask(command, f"the figures of topic {topic}")
    table = TopicStats.from_json(response.body).offset_table
    return {queue.queue_id: offsets for queue, offsets in sorted(table.items(), key=lambda one: one[0].queue_id)}
