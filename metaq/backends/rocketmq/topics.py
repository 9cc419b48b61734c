"""Making and deleting topics at one broker: what administrators do."""

from __future__ import annotations

from typing import Final

from metaq.backends.rocketmq.pool import SessionPool
from metaq.model import Address
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.administration import DeleteTopicInBroker, UpdateAndCreateTopic

READ_AND_WRITE: Final = 6
QUEUES_MAX: Final = 1024


def create_topic(pool: SessionPool, broker_name: str, address: Address, topic: str, queues: int) -> None:
    """Make a topic with ``queues`` queues at the broker at ``address``, or give it as many.

    Raises:
        RequestRefused, AccessDenied: The broker refuses, such as for its own topics.
        ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked.
    """
    header = UpdateAndCreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=READ_AND_WRITE,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    with pool.lease(address) as session:
        session.ask(to_request(header, broker_name=broker_name), f"making topic {topic!r}")


def delete_topic(pool: SessionPool, broker_name: str, address: Address, topic: str) -> None:
    """Delete a topic at the broker at ``address``, with all its messages. Raises as ``create_topic``."""
    with pool.lease(address) as session:
        session.ask(to_request(DeleteTopicInBroker(topic=topic), broker_name=broker_name), f"deleting topic {topic!r}")
