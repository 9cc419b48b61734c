"""Messages that a consumer could not process: sent back (36), redelivered to its group, finally dead letters.

A copy of the message is stored in ``%RETRY%group``, after a delay that grows each time, or in ``%DLQ%group`` after the
last attempt. The copy has the original topic and id. A consumer that cannot send a message back sends it to its retry
topic itself; after the last attempt it is redirected to the dead letters, too. Source: docs/rocketmq-broker.md,
"Retries and dead letters".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from metaq.errors import MetaqError
from metaq.formats.rocketmq.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT
from metaq.formats.rocketmq.records import Record
from metaq.formats.topic_names import DEAD_PREFIX, RETRY_PREFIX
from metaq.model import INT32_MAX
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.sends import ConsumerSendMsgBack
from metaq_broker.log.engine.outcomes import BlockInvalid, Refusal
from metaq_broker.rocketmq.delays.delays import DelayedDelivery, Level
from metaq_broker.rocketmq.delays.waiting_messages import MakeTopic, SentMessage, own_topic, with_properties
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.group_settings import Groups, GroupSettings
from metaq_broker.rocketmq.messages.message_store import MessageStore, OnStored, OutgoingMessage, StoredBatch
from metaq_broker.rocketmq.session import Call
from metaq_broker.serve.accounts.account_list import Permission

OWN_MAXIMUM_FROM: Final = 121
"""Clients of this version (3.4.9) and above send their limit of attempts."""
FIRST_LEVEL: Final = 3
"""The delay level of a message that is sent back for the first time."""


class Retries:
    """An ``Interceptor`` of sends: add it before all others."""

    def __init__(self, store: MessageStore, delays: DelayedDelivery, groups: Groups, make_topic: MakeTopic) -> None:
        self._store, self._delays, self._groups, self._make_topic = store, delays, groups, make_topic
        self.when_taken_back: Callable[[str, str], None] = lambda _topic, _group: None
        """Called with topic and group of a message that was sent back."""

    def mount(self, dispatcher: Dispatcher) -> None:
        dispatcher.add([ConsumerSendMsgBack.CODE], self._take_back)

    # ---- 36

    def _take_back(self, call: Call) -> RemotingCommand | None:
        command = call.request
        asked = ConsumerSendMsgBack.from_ext(command.ext)
        try:
            settings = self._groups.find(asked.group)
        except MetaqError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if settings is None:
            remark = f"subscription group not exist, {asked.group}; create it first"
            return command.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
        if settings.retry_queues <= 0:
            return command.reply()  # the group wants no message twice
        found = self._store.find(asked.offset)
        if isinstance(found, Refusal):
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"look message by offset failed, {asked.offset}")
        if (refused := call.refusal_for(own_topic(found), Permission.SUB)) is not None:
            return refused

        def done(outcome: StoredBatch | Refusal) -> None:
            if isinstance(outcome, Refusal):
                remark = f"the message was not taken back: {getattr(outcome, 'reason', outcome)}"
                call.answer(command.reply(ResponseCode.SYSTEM_ERROR, remark=remark))
            else:
                self.when_taken_back(own_topic(found), asked.group)
                call.answer(command.reply())

        self._store_copy(asked, found, settings, _maximum(command, asked, settings), done)
        return None

    def _store_copy(
        self, asked: ConsumerSendMsgBack, found: Record, settings: GroupSettings, maximum: int, done: OnStored
    ) -> None:
        is_dead = found.reconsume_times >= maximum or asked.delay_level < 0
        level = 0 if is_dead else self._delays.levels.nearest(asked.delay_level or FIRST_LEVEL + found.reconsume_times)
        copy = _copy(found, level)
        if isinstance(copy, Refusal):
            done(copy)
            return
        queue_count = 1 if is_dead else settings.retry_queues
        topic = (DEAD_PREFIX if is_dead else RETRY_PREFIX) + asked.group
        queue = random.randrange(queue_count)

        def made() -> None:
            if level:
                self._delays.store(topic, queue, copy, Level(level), done)
            else:
                self._store.append(topic, queue, [copy], done)

        self._with_topic(topic, queue_count, made, done)

    def _with_topic(self, topic: str, queues: int, made: Callable[[], None], done: OnStored) -> None:
        def kept(error: Exception | None) -> None:
            if error is None:
                made()
            else:
                done(NoTopic(str(error)))

        self._make_topic(topic, queues, kept)

    # ---- sends to a retry topic

    @property
    def markers(self) -> tuple[str, ...]:
        """None: such messages are recognised by their topic."""
        return ()

    def accept(self, send: SentMessage, message: OutgoingMessage, done: OnStored) -> bool:
        """Take over a message for a retry topic after its last attempt; return whether it was taken over."""
        topic = send.header.topic
        if not topic.startswith(RETRY_PREFIX):
            return False
        group = topic.removeprefix(RETRY_PREFIX)
        settings = self._groups.get(group) or GroupSettings()
        maximum = settings.retry_max if send.header.max_reconsume_times is None else send.header.max_reconsume_times
        if message.reconsume_times < maximum:
            return False
        dead = with_properties(message, {DELAY: "0"})
        if isinstance(dead, Refusal):
            done(dead)
            return True
        dead_topic = DEAD_PREFIX + group
        self._with_topic(dead_topic, 1, lambda: self._store.append(dead_topic, 0, [dead], done), done)
        return True

    def fault_of_batch(self, topic: str, sys_flag: int, properties: Mapping[str, str]) -> Refusal | None:
        """Refuse batches to a retry topic, whose messages are checked one by one."""
        if topic.startswith(RETRY_PREFIX):
            return BlockInvalid(f"batch request does not support retry group {topic}")
        return None


@dataclass(frozen=True, slots=True)
class NoTopic(Refusal):
    """The topic for a message cannot be made."""

    reason: str


def _maximum(command: RemotingCommand, asked: ConsumerSendMsgBack, settings: GroupSettings) -> int:
    if command.version >= OWN_MAXIMUM_FROM and asked.max_reconsume_times is not None:
        return asked.max_reconsume_times
    return settings.retry_max


def _copy(found: Record, level: int) -> OutgoingMessage | Refusal:
    properties = found.property_map()
    added = {
        RETRY_TOPIC: properties.get(RETRY_TOPIC) or found.topic,
        ORIGIN_MESSAGE_ID: properties.get(ORIGIN_MESSAGE_ID) or found.offset_message_id,
        WAIT: "false",
        DELAY: str(level),
    }
    copy = OutgoingMessage(
        found.body,
        found.properties,
        found.born_timestamp,
        found.born_host,
        found.flag,
        found.sys_flag,
        min(found.reconsume_times + 1, INT32_MAX),  # a client may have sent it with the highest number
    )
    return with_properties(copy, added)
