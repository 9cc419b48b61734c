"""Sends beside a writer's batches: oneway messages, and the recall of a message.

A timed message is recalled with the handle in the response to its send (5.x)::

    handle = base64 (URL-safe) of: v1 TOPIC BROKER_NAME ...     with blanks between

Source: docs/rocketmq-broker.md.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from dataclasses import replace

from metaq.backends.rocketmq.batch_writer import send_header
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.routes import Routes
from metaq.model import Partition
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.sends import RecallMessage, RecallMessageResponse


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
    """Send a message without learning whether the broker stored it.

    ``topic`` and ``group`` are names without namespace.

    Raises:
        BrokerAway, NameServersAway: The broker's address could not be looked up.
        ConnectionFailed, DeadlineExceeded: The message could not be sent.
        FieldError: The message does not fit a frame.
    """
    address = routes.write_address(queue.broker_name, topic=topic)
    name, group = with_namespace(topic, routes.namespace), with_namespace(group, routes.namespace)
    header = replace(send_header(group, name, queue.index, properties), sys_flag=sys_flag)
    command = to_request(header, body, oneway=True, broker_name=queue.broker_name)
    with pool.lease(address) as session:
        session.oneway(command, f"a oneway send to {topic}/{queue}")


def recall(pool: SessionPool, routes: Routes, group: str, topic: str, handle: str) -> str:
    """Cancel the delivery of a message; return its id. ``topic`` and ``group`` are names without namespace.

    Raises:
        ValueError: ``handle`` is not valid.
        RequestRefused, AccessDenied: The broker refuses; the message may have been delivered.
        BrokerAway, NameServersAway, ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked.
    """
    broker_name = _broker_name(handle)
    header = RecallMessage(
        topic=with_namespace(topic, routes.namespace),
        recall_handle=handle,
        producer_group=with_namespace(group, routes.namespace),
    )
    action = f"the recall of a message of {topic}"
    with pool.lease(routes.write_address(broker_name, topic=topic)) as session:
        response = session.ask(to_request(header, broker_name=broker_name), action)
        return session.read(response, RecallMessageResponse).msg_id


def _broker_name(handle: str) -> str:
    try:
        version, _, broker_name, *_ = urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode().split(" ")
    except ValueError:
        version = broker_name = ""
    if version != "v1" or not broker_name:
        raise ValueError(f"recall handle {handle[:80]!r}: expected the handle in the response to a send")
    return broker_name
