"""Pulls (11, and 361 of newer clients), including waiting ones, and messages by their id (33).

A pull returns messages, or the reason why there are none::

    where the offset is             code   nextBeginOffset
    messages there, some wanted      0     after the last one
    messages there, none wanted      20    after the last one that was looked at
    at the end                       19    the same offset; held if the pull says so
    beyond the end, before the first 21    the end, the first
    the queue never had a message    19    0; 21 if the offset is another

Source: docs/rocketmq-broker.md; recordings of RocketMQ 4.9.7 in tests/golden/rocketmq/b_send_pull.jsonl.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from metaq.formats.rocketmq.records import encode_record
from metaq.formats.stored_records import Wanted
from metaq.protocols.remoting.codes import VERSION_5, ResponseCode
from metaq.protocols.remoting.command import Codec, RemotingCommand
from metaq.protocols.remoting.headers.pulls import (
    COMMIT_OFFSET,
    LITE_PULL_MESSAGE,
    SUBSCRIPTION,
    SUSPEND,
    PullMessage,
    ViewMessageById,
)
from metaq.protocols.remoting.response_template import ResponseTemplate
from metaq_broker.log.engine.outcomes import NothingAt, PartitionEmpty, Refusal
from metaq_broker.log.engine.topics import READ, Topics
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.administration.activity import GroupCounts
from metaq_broker.rocketmq.delays.waiting_messages import own_topic
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.groups.group_settings import Groups
from metaq_broker.rocketmq.groups.members import Members
from metaq_broker.rocketmq.messages.message_store import MessageStore, NumberPending, ReadRecords
from metaq_broker.rocketmq.pulls.filters import SQL92, TAG, Picked, wanted_by_condition, wanted_by_tags
from metaq_broker.rocketmq.pulls.waiting_pulls import WaitingPull, WaitingPulls
from metaq_broker.rocketmq.refusals import Refused, invalid_parameter, unknown_topic, worded
from metaq_broker.rocketmq.session import Call
from metaq_broker.serve.accounts.account_list import Permission

CODES: Final = (PullMessage.CODE, LITE_PULL_MESSAGE)

SUSPEND_MS_MAX: Final = 120_000
"""Longest time that a pull is held."""

LOOKS_MAX: Final = 4
"""Reads of a pull that was woken, of which none finds a message that is wanted."""

_BROKER: Final = {"suggestWhichBrokerId": "0"}
_OFFSETS: Final = ("nextBeginOffset", "minOffset", "maxOffset")
_FOUND: Final = ResponseTemplate(_BROKER, _OFFSETS, "FOUND")
_DEFAULTS: Final = {"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}


@dataclass(slots=True)
class PullFigures:
    """Pulls answered since the start, including held ones, and the messages in their responses.

    ``found``: pulls with messages. ``longest_s``: the longest time that a read took. ``groups``: the same by group.
    """

    pulls: int = 0
    messages: int = 0
    found: int = 0
    longest_s: float = 0.0
    groups: GroupCounts = field(default_factory=GroupCounts)


@dataclass(slots=True)
class GroupState:
    """The state of consumer groups: settings, members with their subscriptions, offsets."""

    settings: Groups
    members: Members
    offsets: GroupOffsets


class Pulls:
    def __init__(
        self, store: MessageStore, topics: Topics, groups: GroupState, config: RocketmqConfig, held: WaitingPulls
    ) -> None:
        self._store, self._topics, self._groups, self._config, self._held = store, topics, groups, config, held
        self.figures = PullFigures()
        self._loop = asyncio.get_running_loop()

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handlers of pulls and look-ups by id."""
        dispatcher.add(CODES, self.pull)
        dispatcher.add([ViewMessageById.CODE], self.view)
        dispatcher.when_lost(self._held.connection_lost)

    def view(self, call: Call) -> RemotingCommand:
        """Return the message at a physical offset."""
        command = call.request
        asked = ViewMessageById.from_ext(command.ext)
        found = self._store.find(asked.offset)
        if isinstance(found, Refusal):
            text = f"can not find message by the offset, {asked.offset}"
            if not isinstance(found, NothingAt):
                text = worded(asked.topic or "", -1, found).remark
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=text)
        return call.refusal_for(own_topic(found), Permission.SUB) or command.reply(body=encode_record(found))

    def pull(self, call: Call) -> RemotingCommand | bytes | None:
        """Carry out a pull."""
        command = call.request
        asked = PullMessage.from_ext({**_DEFAULTS, **command.ext}, command.code)
        refused = self._refusal(command, asked)
        if isinstance(refused, Refused):
            return command.reply(refused.code, remark=refused.remark)
        if asked.sys_flag & COMMIT_OFFSET and asked.consumer_group:
            self._groups.offsets.commit(asked.topic, asked.consumer_group, asked.queue_id, asked.commit_offset)
        return _Pull(self, call, asked, refused).start()

    def refusal(self, command: RemotingCommand, asked: PullMessage) -> Refused | None:
        """Check a pull; return why it is refused."""
        found = self._refusal(command, asked)
        return found if isinstance(found, Refused) else None

    def _refusal(self, command: RemotingCommand, asked: PullMessage) -> Refused | Picked:
        """Check a pull in RocketMQ's order; return its refusal or its filter."""
        group = self._groups.settings.find(asked.consumer_group)
        if group is None:
            text = f"subscription group [{asked.consumer_group}] does not exist, apply first please!"
            return Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        if not group.consume_enable:
            return Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {asked.consumer_group}")
        settings = self._topics.settings(asked.topic)
        if settings is None:
            return unknown_topic(asked.topic)
        if not settings.perm & READ:
            return Refused(ResponseCode.NO_PERMISSION, f"the topic[{asked.topic}] pulling message is forbidden")
        if not 0 <= asked.queue_id < settings.read_queues:
            text = f"queueId[{asked.queue_id}] is illegal, topic:[{asked.topic}] readQueueNums:[{settings.read_queues}]"
            return Refused(invalid_parameter(command), text)
        found = self._filter(asked)
        if isinstance(found, Picked) and asked.max_msg_nums < 0 and command.version < VERSION_5:
            return Refused(ResponseCode.SYSTEM_ERROR, f"maxMsgNums[{asked.max_msg_nums}] is illegal, it is below 0")
        return found

    def _filter(self, asked: PullMessage) -> Refused | Picked:
        expression, kind = asked.subscription, asked.expression_type or TAG
        if len(expression or "") > self._config.expression_bytes_max:
            return Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed: too long")
        if not asked.sys_flag & SUBSCRIPTION:
            subscriptions = self._groups.members.subscriptions(asked.consumer_group)
            if subscriptions is None:
                text = "the consumer's group info not exist"
                return Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
            known = subscriptions.get(asked.topic)
            if known is None:
                return Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
            if known.version < asked.sub_version:
                return Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
            expression, kind = known.expression, known.kind or TAG
        if kind == TAG:
            try:
                return wanted_by_tags(expression)
            except ValueError:
                return Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
        return self._condition(expression or "", kind, is_own=bool(asked.sys_flag & SUBSCRIPTION))

    def _condition(self, expression: str, kind: str, *, is_own: bool) -> Refused | Picked:
        """Return the filter for a condition; ``is_own``: it is in the pull, not in a heartbeat."""
        if kind != SQL92 or not self._config.has_conditions:
            text = f"The broker does not support consumer to filter message by {kind}"
            return Refused(ResponseCode.SYSTEM_ERROR, text)
        try:
            return wanted_by_condition(expression)
        except ValueError as fault:
            if is_own:
                text = f"parse the consumer's subscription failed: {fault}"
                return Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
            text = f"The broker's consumer filter data is not exist! The condition cannot be used: {fault}"
            return Refused(ResponseCode.FILTER_DATA_NOT_EXIST, text)

    def read(self, asked: PullMessage, offset: int, picked: Picked) -> ReadRecords | Refusal:
        bytes_max, messages_max = self._config.pull_bytes_max, self._config.pull_messages_max
        if asked.max_msg_bytes is not None:
            bytes_max = min(max(1, asked.max_msg_bytes), bytes_max)
        messages_max = min(max(1, asked.max_msg_nums), messages_max)
        wanted = Wanted(messages_max, bytes_max, picked.looked_at_max, picked.tags, picked.condition)
        began = self._loop.time()
        found = self._store.read(asked.topic, asked.queue_id, offset, wanted)
        self.figures.longest_s = max(self.figures.longest_s, self._loop.time() - began)
        return found

    def count(self, topic: str, group: str, messages: int, byte_count: int) -> None:
        self.figures.pulls += 1
        if messages:
            self.figures.found += 1
            self.figures.messages += messages
            self.figures.groups.pulled(topic, group, messages, byte_count)

    def topic_flags(self, topic: str) -> str:
        """Return the flags of a topic: bits of units (``topicSysFlag``)."""
        settings = self._topics.settings(topic)
        return "0" if settings is None else str(settings.sys_flag)

    def may_hold(self, call: Call, asked: PullMessage, weight: int) -> bool:
        """Return whether a pull without messages waits."""
        wants = asked.sys_flag & SUSPEND and asked.suspend_timeout_millis > 0 and not call.request.is_oneway
        return bool(wants) and self._config.long_polling and self._held.has_space_for(call.session, weight)

    def hold(self, pull: _Pull) -> None:
        """Hold a pull until there is a message, or its time is over."""
        asked, call, request = pull.asked, pull.call, pull.call.request
        deadline = self._loop.time() + min(asked.suspend_timeout_millis, SUSPEND_MS_MAX) / 1000
        call.request = RemotingCommand(  # without its fields and its body: they are read, and may be large
            request.code, {}, b"", request.opaque, request.flag, None, request.language, request.version, request.codec
        )
        self._held.hold(
            WaitingPull(call, asked.topic, asked.queue_id, deadline, pull.resume, pull.expire, pull.picked.weight)
        )

    def when_numbered(self, pending: NumberPending, pull: _Pull) -> None:
        """Continue a pull when the partition has its number."""
        self._store.when_numbered(pending, pull.numbered)


class _Pull:
    """A checked pull, from the first read until it is answered."""

    __slots__ = ("_first", "_offset", "_pulls", "asked", "call", "picked")

    def __init__(self, pulls: Pulls, call: Call, asked: PullMessage, picked: Picked) -> None:
        self._pulls, self.call, self.asked, self.picked = pulls, call, asked, picked
        self._offset = self._first = asked.queue_offset

    def start(self) -> RemotingCommand | bytes | None:
        """Read messages; return the response, or its frame; ``None`` if it is sent later."""
        found = self._pulls.read(self.asked, self._offset, self.picked)
        if isinstance(found, NumberPending):
            self._pulls.when_numbered(found, self)
            return None
        if self._is_at_end(found) and self._pulls.may_hold(self.call, self.asked, self.picked.weight):
            self._pulls.hold(self)
            return None
        return self._response(found)

    def numbered(self, refusal: Refusal | None) -> None:
        """Continue when the partition has its number, or gets none."""
        response = self._response(refusal) if refusal is not None else self.start()
        if response is not None:
            self.call.answer(response)

    def resume(self) -> bool:
        """Read again; answer if there are matching messages. Return whether the pull is finished."""
        found = self._pulls.read(self.asked, self._offset, self.picked)
        for _ in range(LOOKS_MAX):  # then the client gets the next offset, and continues there
            if not isinstance(found, ReadRecords) or found.records or found.next_offset <= self._offset:
                break
            self._offset = found.next_offset  # none of them matches: continue to wait after them
            found = self._pulls.read(self.asked, self._offset, self.picked)
        if isinstance(found, NumberPending):
            self._pulls.when_numbered(found, self)
            return True
        if self._is_at_end(found):
            return False
        self.call.answer(self._response(found))
        return True

    def expire(self) -> None:
        """Answer without messages."""
        self.call.answer(self._response(self._pulls.read(self.asked, self._offset, self.picked)))

    def _is_at_end(self, found: ReadRecords | Refusal) -> bool:
        if isinstance(found, ReadRecords):
            return not found.records and self._offset == found.max_offset
        return isinstance(found, PartitionEmpty) and self._offset == 0

    def _response(self, found: ReadRecords | Refusal) -> RemotingCommand | bytes:
        """Return the response, or its frame."""
        command, offset = self.call.request, self._offset
        if isinstance(found, NumberPending):  # the time is up just before it has one
            found = ReadRecords(b"", offset, 0, offset)
        elif isinstance(found, PartitionEmpty):
            found = ReadRecords(b"", offset, 0, 0)
        elif isinstance(found, Refusal):
            refused = worded(self.asked.topic, self.asked.queue_id, found)
            return command.reply(refused.code, remark=refused.remark)
        self._pulls.count(self.asked.topic, self.asked.consumer_group, found.messages, len(found.records))
        if found.records:
            if command.version < VERSION_5 and command.codec is Codec.JSON:
                values = found.next_offset, found.min_offset, found.max_offset
                return _FOUND.frame(command.opaque, values, found.records)
            return self._reply(ResponseCode.SUCCESS, "FOUND", found.next_offset, found)
        if found.max_offset == 0:
            code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
            return self._reply(code, "NO_MESSAGE_IN_QUEUE", 0, found)
        if found.looked_at or found.next_offset != offset or offset != self._first:
            return self._reply(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", found.next_offset, found)
        if offset < found.min_offset:
            return self._reply(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", found.min_offset, found)
        if offset > found.max_offset:
            return self._reply(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", found.max_offset, found)
        return self._reply(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset, found)

    def _reply(self, code: int, status: str, next_offset: int, found: ReadRecords) -> RemotingCommand:
        values = str(next_offset), str(found.min_offset), str(found.max_offset)
        ext = {**_BROKER, **dict(zip(_OFFSETS, values, strict=True))}
        if self.call.request.version >= VERSION_5:
            ext |= {"topicSysFlag": self._pulls.topic_flags(self.asked.topic), "groupSysFlag": "0"}
        return self.call.request.reply(code, ext, found.records, status)
