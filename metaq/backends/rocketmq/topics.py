"""Creates, changes and deletes topics at one broker."""

from __future__ import annotations

from typing import Final

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.pool import SessionPool
from metaq.errors import FieldError, ProtocolError
from metaq.formats.topic_names import TEMPLATE_TOPIC
from metaq.model import Address
from metaq.protocols.remoting.bodies.registration import TopicConfigBody, TopicConfigs
from metaq.protocols.remoting.bodies.routes import READABLE, WRITABLE
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.administration import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetTopicConfig,
    UpdateAndCreateTopic,
)
from metaq.protocols.remoting.headers.routes import DeleteTopicInNamesrv

__all__ = [
    "READABLE",
    "WRITABLE",
    "TopicConfigBody",
    "create_topic",
    "delete_topic",
    "forget_route",
    "read_topic",
    "write_topic",
]

READ_AND_WRITE: Final = READABLE | WRITABLE
QUEUES_MAX: Final = 1024


def create_topic(
    pool: SessionPool, broker_name: str, address: Address, topic: str, queues: int, perm: int = READ_AND_WRITE
) -> None:
    """Create a topic with ``queues`` queues at the broker at ``address``, or change their number.

    Raises:
        RequestRefused, AccessDenied: The broker refuses, for example for reserved topics.
        ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked.
    """
    config = TopicConfigBody(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
    write_topic(pool, broker_name, address, config)


def write_topic(pool: SessionPool, broker_name: str, address: Address, config: TopicConfigBody) -> None:
    """Create or change a topic according to ``config``; its attributes of 5.x are kept. Raises as ``create_topic``."""
    header = UpdateAndCreateTopic(
        topic=config.topic_name,
        default_topic=TEMPLATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
    )
    with pool.lease(address) as session:
        session.ask(to_request(header, broker_name=broker_name), f"setting up topic {config.topic_name!r}")


def read_topic(pool: SessionPool, broker_name: str, address: Address, topic: str) -> TopicConfigBody | None:
    """Return the settings of a topic at the broker at ``address``; ``None`` if it does not have it.

    Brokers of 4.x do not know the request for one topic: they are asked for all. Raises as ``create_topic``.
    """
    action = f"the settings of topic {topic!r}"
    one, every = (
        to_request(each, broker_name=broker_name) for each in (GetTopicConfig(topic=topic), GetAllTopicConfig())
    )
    with pool.lease(address) as session:
        response = session.call(one, action)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        try:
            if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return TopicConfigBody.from_json(session.accepted(response, one, action).body)
            return TopicConfigs.from_json(session.ask(every, action).body).topic_config_table.get(topic)
        except FieldError as error:
            raise ProtocolError(f"an answer in which {error}", address=address) from None


def delete_topic(pool: SessionPool, broker_name: str, address: Address, topic: str) -> None:
    """Delete a topic at the broker at ``address``, with all its messages. Raises as ``create_topic``."""
    with pool.lease(address) as session:
        session.ask(to_request(DeleteTopicInBroker(topic=topic), broker_name=broker_name), f"deleting topic {topic!r}")


def forget_route(pool: SessionPool, name_server: Address, topic: str) -> None:
    """Have a name server forget the route of a topic; ignored if it does not support that, as a proxy.

    Raises as ``create_topic``.
    """
    with pool.lease(name_server) as session:
        try:
            session.ask(to_request(DeleteTopicInNamesrv(topic=topic)), f"forgetting the route of topic {topic!r}")
        except RequestRefused as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
