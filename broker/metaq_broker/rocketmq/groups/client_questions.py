"""Administrative requests to a group's clients through the broker: new offsets (222), figures (307), consume (309).

The broker sends the clients of a group their new offsets (220), and they apply and commit them. If a group has no
clients now, the broker commits them, as 5.x does; administrators' clients before 5.0 get the group's committed offsets
and commit themselves. The other two requests are forwarded to one client, and its answer is returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast

from metaq.errors import DeadlineExceeded, MetaqError
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.records import Record, encode_record
from metaq.protocols.remoting.bodies.groups import MessageQueue
from metaq.protocols.remoting.bodies.offsets import ResetOffsets
from metaq.protocols.remoting.codes import VERSION_5, ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import ConsumeMessageDirectly, GetConsumerRunningInfo
from metaq.protocols.remoting.headers.offsets import RESET_CONSUMER_CLIENT_OFFSET, ResetOffset
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.engine.topics import Topics
from metaq_broker.rocketmq.delays.waiting_messages import own_topic
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.groups.group_settings import Groups
from metaq_broker.rocketmq.groups.members import Members
from metaq_broker.rocketmq.groups.offset_requests import QueueOffsets, QueueUnreadable
from metaq_broker.rocketmq.session import Call, RemotingSession
from metaq_broker.rocketmq.when_kept import answer_when_kept
from metaq_broker.serve.accounts.account_list import Permission

TO_THE_END: Final = -1
"""Time that means the end of the queue."""

BY_TIME: Final = -1
"""Offset of a queue that means the offset of the time."""

TIMEOUT_S: Final = 10.0
"""For a client to answer."""


class FoundMessages(QueueOffsets, Protocol):
    """The required part of the message store."""

    def find(self, physical_offset: int) -> Record | Refusal: ...


class ClientQuestions:
    def __init__(
        self,
        broker_name: str,
        groups: Groups,
        members: Members,
        offsets: GroupOffsets,
        topics: Topics,
        store: FoundMessages,
    ) -> None:
        self._broker_name, self._groups, self._members, self._offsets = broker_name, groups, members, offsets
        self._topics, self._store = topics, store
        self._tasks: set[asyncio.Task[None]] = set()

    def mount(self, dispatcher: Dispatcher) -> None:
        dispatcher.add([ResetOffset.CODE], self._reset)
        dispatcher.add([GetConsumerRunningInfo.CODE], self._running_info)
        dispatcher.add([ConsumeMessageDirectly.CODE], self._consume)

    # ---- offsets

    def _reset(self, call: Call) -> RemotingCommand | None:
        command, asked = call.request, ResetOffset.from_ext(call.request.ext)
        is_v5, settings = command.version >= VERSION_5, self._topics.settings(asked.topic)
        if settings is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={asked.topic}"
            return command.reply(ResponseCode.TOPIC_NOT_EXIST if is_v5 else ResponseCode.SYSTEM_ERROR, remark=remark)
        sessions = cast("list[RemotingSession]", [each.connection for each in self._members.consumers(asked.group)])
        committed = self._offsets.of_group(asked.topic, asked.group)
        if not sessions and not committed and self._groups.get(asked.group) is None:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST if is_v5 else ResponseCode.SYSTEM_ERROR
            return command.reply(code, remark=f"THe consumer group <{asked.group}> not exist")
        if not sessions and committed and not is_v5:
            remark = f"Consumer not online, so can not reset offset, Group: {asked.group} Topic: {asked.topic}"
            return command.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
        offsets = self._new_offsets(asked, settings.queues)
        if isinstance(offsets, str):
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=offsets)
        body = self._answer_body(asked.topic, offsets)
        if not sessions:
            self._commit(call, asked, offsets, body)
            return None
        return self._notify(command, asked, sessions, body)

    def _commit(self, call: Call, asked: ResetOffset, offsets: Mapping[int, int], body: bytes) -> None:
        """Commit the offsets of a group without clients; answered when the last one, and so all, are on the disk."""
        kept = answer_when_kept(call, body=body)
        *others, last = offsets.items()
        for queue, offset in others:
            self._offsets.commit(asked.topic, asked.group, queue, offset)
        self._offsets.commit(asked.topic, asked.group, *last, kept)

    def _notify(
        self, command: RemotingCommand, asked: ResetOffset, sessions: Sequence[RemotingSession], body: bytes
    ) -> RemotingCommand:
        notice = to_request(asked, body, code=RESET_CONSUMER_CLIENT_OFFSET, oneway=True)
        silent = [session.client.peer for session in sessions if not _notify_client(session, notice)]
        if silent:
            remark = f"{len(silent)} of {len(sessions)} clients were not notified, such as {silent[0]}; try again"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        return command.reply(body=body)

    def _answer_body(self, topic: str, offsets: Mapping[int, int]) -> bytes:
        table = {
            MessageQueue(topic=topic, broker_name=self._broker_name, queue_id=queue): offset
            for queue, offset in offsets.items()
        }
        return ResetOffsets(offset_table=table).to_json(bare_number_keys=True)

    def _new_offsets(self, asked: ResetOffset, queues: int) -> dict[int, int] | str:
        """Return queue -> offset for the requested queue or all; or the fault of the request."""
        queue = asked.queue_id
        if queue is None or queue < 0:
            return {each: self._offset(asked, each) for each in range(queues)} or "No queues to reset."
        if queue >= queues:
            return f"queueId[{queue}] is illegal, topic:[{asked.topic}] has {queues} queues"
        if asked.offset is None or asked.offset == BY_TIME:
            return {queue: self._offset(asked, queue)}
        if (fault := self._store.fault(asked.topic, queue)) is not None:
            raise QueueUnreadable(asked.topic, queue, fault)
        first, end = self._store.min_offset(asked.topic, queue), self._store.max_offset(asked.topic, queue)
        if not first <= asked.offset <= end:
            return f"Target offset {asked.offset} not in consume queue range [{first}-{end}]"
        return {queue: asked.offset}

    def _offset(self, asked: ResetOffset, queue: int) -> int:
        """Return the new offset of a queue: the time's, and without force not after the group's."""
        if (fault := self._store.fault(asked.topic, queue)) is not None:
            raise QueueUnreadable(asked.topic, queue, fault)
        found: int | Refusal = self._store.max_offset(asked.topic, queue)
        if found and asked.timestamp != TO_THE_END:
            found = self._store.offset_at(asked.topic, queue, asked.timestamp)
        if isinstance(found, Refusal):
            raise QueueUnreadable(asked.topic, queue, found)
        committed = self._offsets.get(asked.topic, asked.group, queue)
        return found if asked.is_force or committed is None else min(found, committed)

    # ---- one client

    def _running_info(self, call: Call) -> RemotingCommand | None:
        asked = GetConsumerRunningInfo.from_ext(call.request.ext)
        return self._hand_over(call, asked.consumer_group, asked.client_id, b"")

    def _consume(self, call: Call) -> RemotingCommand | None:
        asked = ConsumeMessageDirectly.from_ext(call.request.ext)
        body = b""
        if asked.msg_id is not None:
            try:
                place = OffsetMessageId.parse(asked.msg_id).physical_offset
            except ValueError as error:
                return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
            found = self._store.find(place)
            if isinstance(found, Refusal):
                return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=f"no message has the id {asked.msg_id}")
            if (refused := call.refusal_for(own_topic(found), Permission.SUB)) is not None:
                return refused
            body = encode_record(found)
        return self._hand_over(call, asked.consumer_group, asked.client_id or "", body)

    def _hand_over(self, call: Call, group: str, client_id: str, body: bytes) -> RemotingCommand | None:
        for member in self._members.consumers(group):
            if member.client_id == client_id:
                session = cast("RemotingSession", member.connection)
                task = asyncio.get_running_loop().create_task(self._ask(call, session, body))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return None
        remark = f"The Consumer <{group}> <{client_id}> not online"
        return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)

    async def _ask(self, call: Call, session: RemotingSession, body: bytes) -> None:
        command = call.request
        try:
            answer = await session.call(RemotingCommand(command.code, command.ext, body), TIMEOUT_S)
        except DeadlineExceeded as error:
            call.answer(command.reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark=str(error)))
        except MetaqError as error:
            call.answer(command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
        else:
            call.answer(command.reply(answer.code, answer.ext, answer.body, answer.remark))


def _notify_client(session: RemotingSession, command: RemotingCommand) -> bool:
    try:
        session.oneway(command)
    except MetaqError:  # it is disconnected, or does not read
        return False
    return True
