"""Takes back a message that waits for its moment, with the handle that the answer to its send had (5.x).

::

    handle = base64 (URL-safe) of: v1 TOPIC BROKER_NAME ...     with blanks between

Source: docs/rocketmq-broker.md.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode

from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.routes import Routes
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.sends import RecallMessage, RecallMessageResponse


def recall(pool: SessionPool, routes: Routes, group: str, topic: str, handle: str) -> str:
    """Have a message not delivered; return its id. ``topic`` and ``group`` are names without namespace.

    Raises:
        ValueError: ``handle`` is none.
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
        raise ValueError(f"recall handle {handle[:80]!r}: expected that of an answer to a send")
    return broker_name
