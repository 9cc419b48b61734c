"""Replies to requests (324, 325): a consumer's answer to a message is pushed (326) to the producer that waits for it.

A request is an ordinary message with the properties ``CORRELATION_ID``, ``REPLY_TO_CLIENT`` (the producer's client id)
and ``TTL``. Its consumer sends the reply to a broker of the cluster, under the cluster's reply topic. If the producer
is connected to that broker, the reply is pushed to it, and stored in the reply topic like any message when the producer
has taken it. If it is not, the reply is refused (1), and clients try another broker.

Source: docs/rocketmq-broker.md, "Requests and replies".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from metaq.errors import MetaqError
from metaq.formats.rocketmq.hosts import host_text
from metaq.formats.rocketmq.properties import BYTES_MAX, REPLY_TO_CLIENT, parse_properties, write_properties
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import PushReplyMessage
from metaq.protocols.remoting.headers.sends import SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2, SendMessage
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.engine.topics import ServedTopic, Topics
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.members import Members
from metaq_broker.rocketmq.messages.message_store import OnStored, OutgoingMessage, StoredBatch
from metaq_broker.rocketmq.refusals import Refused, unknown_topic
from metaq_broker.rocketmq.sends.sends import SENT, SendChecks, born_host, without_queues
from metaq_broker.rocketmq.session import Call, RemotingSession

TIMEOUT_S: Final = 10.0
"""For the producer to take a reply."""

PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
"""Property of a pushed reply: when the broker pushed it, in milliseconds."""

_NOT_STORED_ID: Final = "0"
"""Message id of a reply that was pushed and is not stored: clients expect one."""


class ReplyStore(Protocol):
    """The required part of the message store."""

    store_host: bytes

    def append(self, topic: str, queue: int, messages: Sequence[OutgoingMessage], done: OnStored) -> None:
        """Store messages; ``done`` is called once."""


class Replies:
    """``now_ms`` is the time of the day. ``keeps``: whether replies are stored."""

    def __init__(
        self,
        members: Members,
        topics: Topics,
        store: ReplyStore,
        now_ms: Callable[[], int],
        broker_name: str,
        checks: SendChecks,
        *,
        keeps: bool,
    ) -> None:
        self._members, self._topics, self._store, self._now_ms = members, topics, store, now_ms
        self._broker_name, self._checks, self._keeps = broker_name, checks, keeps
        self._tasks: set[asyncio.Task[None]] = set()

    def mount(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.add([SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2], self._reply)

    def _reply(self, call: Call) -> RemotingCommand | None:
        command = call.request
        header = SendMessage.from_ext(command.ext, command.code)
        settings = self._topics.settings(header.topic)
        refused = self._refusal(command, header, settings)
        if refused is not None:
            return command.reply(refused.code, SENT, remark=refused.remark)
        assert settings is not None, "else it is refused"
        client_id = parse_properties(header.properties or "").get(REPLY_TO_CLIENT)
        session = None if client_id is None else self._members.producer_of(client_id)
        if client_id is None or session is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, SENT, remark=self._nobody(client_id))
        queue = header.queue_id if header.queue_id >= 0 else random.randrange(settings.write_queues)
        pushed = self._push(call, header, queue, cast("RemotingSession", session), client_id)
        task = asyncio.get_running_loop().create_task(pushed)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    def _refusal(self, command: RemotingCommand, header: SendMessage, settings: ServedTopic | None) -> Refused | None:
        refused = self._checks.of_topic(command, header.topic)
        if refused is not None:
            return refused
        if settings is None:
            return unknown_topic(header.topic)
        refused = self._checks.of_queue(command, header.topic, header.queue_id, settings)
        if refused is not None:
            return refused
        if not settings.write_queues:
            return without_queues(header.topic)
        properties = (header.properties or "").encode("utf-8", "replace")
        return self._checks.too_long if len(properties) > BYTES_MAX else None

    def _nobody(self, client_id: str | None) -> str:
        if client_id is None:
            return f"the reply names no client: it has no property {REPLY_TO_CLIENT}"
        return f"no producer with the client id {client_id} is connected to broker {self._broker_name}"

    async def _push(
        self, call: Call, header: SendMessage, queue: int, session: RemotingSession, client_id: str
    ) -> None:
        command = call.request
        try:
            answer = await session.call(self._pushed(call, header, queue), TIMEOUT_S)
            fault = None if answer.code == ResponseCode.SUCCESS else answer.remark or f"it answered {answer.code}"
        except MetaqError as error:
            fault = str(error)
        if fault is not None:
            remark = f"client {client_id} did not take the reply: {fault}"
            call.answer(command.reply(ResponseCode.SYSTEM_ERROR, SENT, remark=remark))
        elif self._keeps:
            self._keep(call, header, queue)
        else:
            call.answer(_answer(command, _NOT_STORED_ID, queue, 0))

    def _pushed(self, call: Call, header: SendMessage, queue: int) -> RemotingCommand:
        now_ms = self._now_ms()
        properties = parse_properties(header.properties or "") | {PUSH_REPLY_TIME: str(now_ms)}
        pushed = PushReplyMessage(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=queue,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=write_properties(properties),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=call.session.client.peer,
            store_host=host_text(self._store.store_host),
            store_timestamp=now_ms,
        )
        return to_request(pushed, call.request.body)

    def _keep(self, call: Call, header: SendMessage, queue: int) -> None:
        """Store a reply that was taken. The answer is a success even if the disk refuses: nothing may be repeated."""

        def done(stored: StoredBatch | Refusal) -> None:
            if isinstance(stored, Refusal):
                call.answer(_answer(call.request, _NOT_STORED_ID, queue, 0))
            else:
                call.answer(_answer(call.request, stored.message_ids()[0], queue, stored.queue_offset))

        message = OutgoingMessage(
            call.request.body,
            (header.properties or "").encode("utf-8", "replace"),
            header.born_timestamp,
            born_host(call.session.client.peer),
            header.flag,
            header.sys_flag,
            header.reconsume_times or 0,
        )
        self._store.append(header.topic, queue, [message], done)


def _answer(command: RemotingCommand, message_id: str, queue: int, offset: int) -> RemotingCommand:
    ext = {**SENT, "msgId": message_id, "queueId": str(queue), "queueOffset": str(offset)}
    return command.reply(ResponseCode.SUCCESS, ext)
