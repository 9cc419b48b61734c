"""Sends: one message (10, 310) or a batch (320 and, by its flag, any other) into a queue.

A send is checked, made into frames of the stored form in one pass, and answered when its frames may be acknowledged. A
message that is stored elsewhere first, such as a delayed one, is passed to an ``Interceptor``. A batch marked as such a
message is refused, as in RocketMQ; its elements' properties are ignored for this.

Source: docs/rocketmq-broker.md; recordings of RocketMQ 4.9.7 in tests/golden/rocketmq/b_send_pull.jsonl.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from metaq.errors import CorruptRecord
from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_stored
from metaq.formats.rocketmq.hosts import IPV4_BYTES, host_bytes
from metaq.formats.rocketmq.properties import BYTES_MAX, parse_properties
from metaq.formats.rocketmq.sys_flags import TRANSACTION
from metaq.formats.stored_form import encode_head, tag_of
from metaq.formats.topic_names import RETRY_PREFIX, rocketmq_fault
from metaq.protocols.remoting.codes import VERSION_5, ResponseCode
from metaq.protocols.remoting.command import Codec, RemotingCommand
from metaq.protocols.remoting.headers.sends import SEND_CODES, SendMessage
from metaq.protocols.remoting.response_template import ResponseTemplate
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.engine.topics import WRITE, ServedTopic, TopicRefused, Topics
from metaq_broker.log.files.errors import StateFull
from metaq_broker.log.state.state_table import OnDurable
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.delays.delays import DelayInvalid
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.messages.message_store import MessageStore, OnStored, OutgoingMessage, StoredBatch
from metaq_broker.rocketmq.refusals import Refused, invalid_parameter, unknown_topic, worded
from metaq_broker.rocketmq.sends.batch_frames import BATCHES, Shared
from metaq_broker.rocketmq.sends.send_groups import SendGroups
from metaq_broker.rocketmq.sends.send_headers import read_send_header
from metaq_broker.rocketmq.session import Call
from metaq_broker.rocketmq.system_topics import NOT_WRITTEN_BY_CLIENTS

SENT: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""Fields of all responses to sends and replies."""

_STORED: Final = ResponseTemplate(SENT, ("msgId", "queueId", "queueOffset"))
_WAIT: Final = re.compile("WAIT\x01(?<![^\x02]WAIT\x01)[^\x02]*\x02?")  # begins with the word: that is found quickly
_TOO_LONG: Final = "the message is illegal, maybe msg body or properties length not matched."


class Interceptor(Protocol):
    """Takes over the messages that are not stored where they were sent to."""

    @property
    def markers(self) -> Sequence[str]:
        """Names of properties that mark such a message. A topic that begins with ``%``, or a flag, marks it, too."""

    def accept(self, send: Send, message: OutgoingMessage, done: OnStored) -> bool:
        """Return whether the message is taken over; then ``done`` is called once, with its position or the refusal."""

    def fault_of_batch(self, topic: str, sys_flag: int, properties: Mapping[str, str]) -> Refusal | None:
        """Return why a batch to ``topic`` with these properties is refused; ``None`` if it is allowed."""


class Send:
    """One send: its request's header, its queue, and its client.

    ``born_timestamp`` and ``properties`` belong to this send; in ``header`` they may belong to another one.
    """

    __slots__ = ("born_timestamp", "call", "fields", "header", "properties", "queue")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.header, self.born_timestamp, self.properties = read_send_header(call.request)
        self.queue = self.header.queue_id
        self.fields: dict[str, str] = {}
        """Additional fields of the response for a client of 5.x."""

    def stored(self, outcome: StoredBatch | Refusal) -> None:
        """Answer the send: with where its messages are, or why they are not stored."""
        call, command = self.call, self.call.request
        if isinstance(outcome, Refusal):
            call.answer(_refusal(self, outcome))
            return
        if outcome.unnumbered is not None:
            code = ResponseCode.FLUSH_DISK_TIMEOUT  # it is stored, and clients do not send it again
            call.answer(command.reply(code, self._position(outcome), remark=outcome.unnumbered))
            return
        if command.version < VERSION_5 and command.codec is Codec.JSON:
            values = ",".join(outcome.message_ids()), self.queue, outcome.queue_offset
            call.answer(_STORED.frame(command.opaque, values))
            return
        ext = self._position(outcome)
        if command.version >= VERSION_5:
            ext.update(self.fields)
            if (key := parse_properties(self.properties).get("UNIQ_KEY")) is not None:
                ext["transactionId"] = key
        call.answer(command.reply(0, ext))

    def _position(self, stored: StoredBatch) -> dict[str, str]:
        """Return the fields that say where the messages are; the queue is the client's, also of ones that wait."""
        ids = ",".join(stored.message_ids())
        return {**SENT, "msgId": ids, "queueId": str(self.queue), "queueOffset": str(stored.queue_offset)}


@dataclass(frozen=True, slots=True)
class SendChecks:
    """What must hold of the messages that clients store, sent or replied. ``host`` is the broker's for clients."""

    host: str
    message_bytes_max: int

    def of_topic(self, command: RemotingCommand, topic: str) -> Refused | None:
        """Return why clients may not write to a topic of this name."""
        fault = rocketmq_fault(topic, of_groups=True)
        if fault is not None:
            return Refused(invalid_parameter(command), fault)
        if topic in NOT_WRITTEN_BY_CLIENTS:
            return Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        return None

    def of_queue(self, command: RemotingCommand, topic: str, queue: int, settings: ServedTopic) -> Refused | None:
        """Return why the command's body is not stored in a queue; a negative one stands for any."""
        if not settings.perm & WRITE:
            text = f"the broker[{self.host}] sending message is forbidden for topic[{topic}]"
            return Refused(ResponseCode.NO_PERMISSION, text)
        if queue >= settings.read_queues and queue >= settings.write_queues:
            text = f"request queueId[{queue}] is illegal, TopicConfig [topicName={topic}]"
            return Refused(invalid_parameter(command), text)
        if len(command.body) > self.message_bytes_max:
            return self.too_long
        if queue < 0 and not settings.write_queues:
            return without_queues(topic)
        return None

    @property
    def too_long(self) -> Refused:
        """The refusal of a message whose body or properties are too long."""
        limits = f"msg body length limit {self.message_bytes_max}B, msg properties length limit {BYTES_MAX}B."
        return Refused(ResponseCode.MESSAGE_ILLEGAL, f"{_TOO_LONG} {limits}")


def without_queues(topic: str) -> Refused:
    """Return the refusal to write to a topic that has only queues to read."""
    text = f"topic[{topic}] has no queue to write, TopicConfig [topicName={topic}]"
    return Refused(ResponseCode.NO_PERMISSION, text)


class Sends:
    def __init__(self, store: MessageStore, topics: Topics, config: RocketmqConfig) -> None:
        self._topics, self._config = topics, config
        self.checks = SendChecks(config.advertised_host, config.message_bytes_max)
        self._groups = SendGroups(store)
        self._interceptors: list[Interceptor] = []
        self._markers: re.Pattern[str] | None = None
        self._cluster = f"CLUSTER\x01{config.cluster_name}"
        region = "\x02".join(f"{name}\x01{value}" for name, value in SENT.items())
        self._of_new_clients = f"{region}\x02{self._cluster}"  # as 5.x stores it; its clients' traces read the region

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.add(SEND_CODES, self.send)

    def intercept(self, interceptor: Interceptor) -> None:
        """Call ``interceptor`` before a single message is stored; interceptors are called in the order of
        registration.
        """
        self._interceptors.append(interceptor)
        names = {re.escape(name) for each in self._interceptors for name in each.markers}
        self._markers = re.compile(f"\x02(?:{'|'.join(sorted(names))})\x01") if names else None

    def send(self, call: Call) -> RemotingCommand | None:
        """Carry out a send."""
        command = call.request
        topic = command.ext.get("b" if command.code in SendMessage.SHORT_CODES else "topic", "")
        if (refused := self.checks.of_topic(command, topic)) is not None:
            return _answer(command, refused)
        send, settings = Send(call), self._topics.settings(topic)
        return self._create_topic(send) if settings is None else self._send(send, settings)

    def _create_topic(self, send: Send) -> RemotingCommand | None:
        """Create the topic of a message; the send continues when its settings are durable."""
        call, header = send.call, send.header

        def created(error: Exception | None) -> None:
            settings = self._topics.settings(header.topic)
            response: RemotingCommand | None
            if error is not None:
                text = f"the message is not stored, because its topic is not on the disk yet: {error}"
                response = _answer(call.request, Refused(ResponseCode.SYSTEM_ERROR, text))
            elif settings is None:
                response = _answer(call.request, unknown_topic(header.topic))
            else:
                response = self._send(send, settings)
            if response is not None:
                call.answer(response)

        try:
            made = self._make_topic(header, created)
        except (TopicRefused, StateFull) as error:
            return _answer(call.request, Refused(ResponseCode.SYSTEM_ERROR, str(error)))
        return _answer(call.request, unknown_topic(header.topic)) if made is None else None

    def _make_topic(self, header: SendMessage, created: OnDurable) -> ServedTopic | None:
        if header.topic.startswith(RETRY_PREFIX):
            settings = ServedTopic(1, 1)
            self._topics.create(header.topic, settings, created)
            return settings
        queues = header.default_topic_queue_nums or self._config.default_queues
        return self._topics.create_like(header.topic, header.default_topic, queues, created)

    def _send(self, send: Send, settings: ServedTopic) -> RemotingCommand | None:
        command, queue = send.call.request, send.queue
        refused = self.checks.of_queue(command, send.header.topic, queue, settings)
        if refused is not None:
            return _answer(command, refused)
        if queue < 0:
            send.queue = random.randrange(settings.write_queues)
        return self._batch(send) if send.header.batch else self._single(send)

    def _single(self, send: Send) -> RemotingCommand | None:
        header, command, text = send.header, send.call.request, send.properties
        if "WAIT\x01" in text:
            text = _WAIT.sub("", text)
        joint = "" if not text or text.endswith("\x02") else "\x02"
        added = self._cluster if command.version < VERSION_5 else self._of_new_clients
        properties = f"{text}{joint}{added}".encode("utf-8", "replace")
        if len(properties) > BYTES_MAX:
            return _answer(command, self.checks.too_long)
        born, times = born_host(send.call.session.client.peer), header.reconsume_times or 0
        if self._is_marked(header, text):
            message = OutgoingMessage(
                command.body, properties, send.born_timestamp, born, header.flag, header.sys_flag, times
            )
            for each in self._interceptors:
                if each.accept(send, message, send.stored):
                    return None
        head = encode_head(header.flag, header.sys_flag, send.born_timestamp, born, times)
        frame = encode_stored(tag_of(properties), head, properties, command.body)
        self._groups.add(header.topic, send.queue, FrameBlock(frame, 1), send.stored)
        return None

    def _is_marked(self, header: SendMessage, properties: str) -> bool:
        """Return whether an interceptor may take over a send."""
        if self._markers is None:
            return False
        is_of_group, is_half = header.topic[0] == "%", header.sys_flag & TRANSACTION
        return bool(is_of_group or is_half or self._markers.search(f"\x02{properties}"))

    def _batch(self, send: Send) -> RemotingCommand | None:
        header, command = send.header, send.call.request
        if self._is_marked(header, send.properties):
            properties = parse_properties(send.properties)
            for each in self._interceptors:
                fault = each.fault_of_batch(header.topic, header.sys_flag, properties)
                if fault is not None:
                    return _refusal(send, fault)
        common = "\x02".join(filter(None, (send.properties.strip("\x02"), self._cluster)))
        shared = Shared(
            common.encode("utf-8", "replace"),
            header.sys_flag,
            send.born_timestamp,
            born_host(send.call.session.client.peer),
            header.reconsume_times or 0,
        )
        try:
            frames = BATCHES.frames(command.body, shared)
        except CorruptRecord as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"java.nio.BufferUnderflowException: {error}")
        if frames is None:
            return _answer(command, self.checks.too_long)
        self._groups.add(header.topic, send.queue, frames, send.stored)
        return None


@lru_cache(maxsize=4096)
def born_host(peer: str) -> bytes:
    """Return the address of a client in 8 or 20 bytes; zeros if it is unknown."""
    ip, _, port = peer.rpartition(":")
    try:
        return host_bytes(ip.strip("[]").partition("%")[0], int(port))
    except ValueError:
        return bytes(IPV4_BYTES)


def _refusal(send: Send, refusal: Refusal) -> RemotingCommand:
    ext = {} if isinstance(refusal, DelayInvalid) else SENT
    return _answer(send.call.request, worded(send.header.topic, send.queue, refusal), ext)


def _answer(command: RemotingCommand, refused: Refused, ext: Mapping[str, str] = SENT) -> RemotingCommand:
    return command.reply(refused.code, ext, remark=refused.remark)
