"""Requests and replies: a producer sends a message and waits for the answer of the consumer that gets it.

::

    producer   send, with CORRELATION_ID, REPLY_TO_CLIENT, TTL  ──▶ topic ──▶ consumer
    producer   ◀── push (326) ── a broker that knows the producer ◀── reply (325), to CLUSTER_REPLY_TOPIC

The broker that gets the reply must know the producer: the producer sends heartbeats to all brokers, and a reply that a
broker cannot push is sent to the next one of its cluster; those of others do not have the topic of replies.

Source: docs/remoting-protocol.md; docs/rocketmq-broker.md, "Requests and replies".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from metaq.backends.rocketmq.batch_writer import send_header
from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.routes import Routes
from metaq.errors import FieldError, MetaqError, likeliest_to_pass
from metaq.formats.rocketmq.compression import decompress
from metaq.formats.rocketmq.properties import (
    CLUSTER,
    CORRELATION_ID,
    MESSAGE_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    parse_properties,
    write_properties,
)
from metaq.model import Address
from metaq.net.remoting_client import RemotingClient
from metaq.net.remoting_requests import ResponseFirst
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import PushReplyMessage
from metaq.protocols.remoting.headers.sends import SEND_REPLY_MESSAGE_V2

REPLY: Final = "reply"
"""Value of ``MSG_TYPE`` of a reply."""

_FIRST_QUEUE: Final = 0
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PushedReply:
    """A reply as a broker gave it; ``data`` is decompressed, ``born_timestamp`` is in milliseconds."""

    data: bytes
    properties: Mapping[str, str]
    born_timestamp: int
    born_host: str

    @property
    def correlation_id(self) -> str | None:
        """Which request it answers."""
        return self.properties.get(CORRELATION_ID)


def receive_replies(client: RemotingClient, take: Callable[[PushedReply], None]) -> None:
    """Call ``take`` with each reply that a broker pushes on a connection of ``client``, in a thread of it.

    The broker gets its answer first: a program may end as soon as it has the reply, and the reply's sender would then
    be told that nobody took it. A reply for which nobody waits any more is a success for its sender, as with Java's
    client: a consumer that gets a request again may send a second reply.
    """

    def processor(_: Address, command: RemotingCommand) -> ResponseFirst:
        header = PushReplyMessage.from_ext(command.ext)
        data = decompress(command.body, header.sys_flag)
        properties = parse_properties(header.properties or "")
        pushed = PushedReply(data, properties, header.born_timestamp, header.born_host)
        return ResponseFirst(command.reply(ResponseCode.SUCCESS), lambda: take(pushed))

    client.register(PushReplyMessage.CODE, processor)


def request_properties(correlation_id: str, client_id: str, timeout_ms: int) -> dict[str, str]:
    """Return the properties that make a message a request."""
    return {CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client_id, TTL: str(timeout_ms)}


def reply_properties(request: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the topic of the reply to a request, and the properties that name the request.

    Raises:
        ValueError: The message with the properties ``request`` is not a request.
    """
    for name in (CORRELATION_ID, REPLY_TO_CLIENT, CLUSTER):
        if not request.get(name):
            raise ValueError(f"the message is no request, it has no property {name}: nobody waits for a reply")
    kept = {name: request[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if request.get(name)}
    return f"{request[CLUSTER]}_REPLY_TOPIC", {**kept, MESSAGE_TYPE: REPLY}


def send_reply(
    pool: SessionPool,
    routes: Routes,
    broker_names: Iterable[str],
    group: str,
    topic: str,
    body: bytes,
    properties: Mapping[str, str],
) -> None:
    """Have a reply pushed by one of the brokers, the first that can. ``group`` is without namespace.

    Raises:
        MetaqError: None of them can; it is the first refusal, or else the first error, if possible a retryable one.
        FieldError: The message does not fit a frame.
    """
    text, full_group = write_properties(properties), with_namespace(group, routes.namespace)
    failures: list[MetaqError] = []
    for name in dict.fromkeys(broker_names):
        header = send_header(full_group, topic, _FIRST_QUEUE, text)
        command = to_request(header, body, code=SEND_REPLY_MESSAGE_V2, broker_name=name)
        try:
            with pool.lease(routes.write_address(name)) as session:
                session.ask(command, "a reply")
            return
        except FieldError:
            raise
        except MetaqError as error:
            _LOG.debug("broker %s did not push a reply: %s", name, error)
            failures.append(error)
    if (failure := likeliest_to_pass(failures)) is not None:
        raise next((one for one in failures if isinstance(one, RequestRefused)), failure)
