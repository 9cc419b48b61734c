"""Sends a message for which the broker does not answer: nobody learns whether it was stored."""

from __future__ import annotations

from dataclasses import replace

from metaq.backends.rocketmq.batch_writer import send_header
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.routes import Routes
from metaq.model import Partition
from metaq.protocols.remoting.headers import to_request


def send_oneway(
    pool: SessionPool,
    routes: Routes,
    group: str,
    topic: str,
    queue: Partition,
    body: bytes,
    properties: str,
    sys_flag: int = 0,
) -> None:
    """Hand a message to the network; ``topic`` and ``group`` are names without namespace.

    Raises:
        BrokerAway, NameServersAway: Where the broker is could not be found out.
        ConnectionFailed, DeadlineExceeded: The network did not take it.
        FieldError: The message does not fit a frame.
    """
    address = routes.write_address(queue.broker_name, topic=topic)
    name, group = with_namespace(topic, routes.namespace), with_namespace(group, routes.namespace)
    header = replace(send_header(group, name, queue.index, properties), sys_flag=sys_flag)
    command = to_request(header, body, oneway=True, broker_name=queue.broker_name)
    with pool.lease(address) as session:
        session.oneway(command, f"a oneway send to {topic}/{queue}")
