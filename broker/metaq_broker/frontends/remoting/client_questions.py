"""What administrators ask of a group's clients by way of the broker: new offsets (222), figures (307), consume (309).

The broker tells the clients of a group their new offsets (220) and leaves it to them to go there and to commit. The
other two it hands to one client, and gives its answer back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, cast

from metaq.errors import DeadlineExceeded, MetaqError
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.records import Record, encode_record
from metaq.protocols.remoting.bodies.groups import MessageQueue
from metaq.protocols.remoting.bodies.offsets import ResetOffsets
from metaq.protocols.remoting.codes import RequestCode, ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import ConsumeMessageDirectly, GetConsumerRunningInfo
from metaq.protocols.remoting.headers.offsets import ResetOffset
from metaq_broker.accounts.account_list import Permission
from metaq_broker.engine.outcomes import Refusal
from metaq_broker.engine.topics import Topics
from metaq_broker.frontends.remoting.dispatcher import Call, Dispatcher
from metaq_broker.frontends.remoting.offsets import QueueOffsets, QueueUnreadable
from metaq_broker.frontends.remoting.waiting_messages import own_topic
from metaq_broker.groups.group_offsets import GroupOffsets
from metaq_broker.groups.members import Members

if TYPE_CHECKING:
    from metaq_broker.frontends.remoting.session import RemotingSession

TO_THE_END: Final = -1
"""As a time: behind the last message."""

TIMEOUT_S: Final = 10.0
"""For a client to answer."""


class FoundMessages(QueueOffsets, Protocol):
    """What of the message store is needed here."""

    def find(self, physical_offset: int) -> Record | Refusal:
        """Return the message with this physical offset."""


class ClientQuestions:
    """See the module."""

    def __init__(
        self, broker_name: str, members: Members, offsets: GroupOffsets, topics: Topics, store: FoundMessages
    ) -> None:
        self._broker_name, self._members, self._offsets = broker_name, members, offsets
        self._topics, self._store = topics, store
        self._tasks: set[asyncio.Task[None]] = set()

    def mount(self, dispatcher: Dispatcher) -> None:
        """Have these requests answered here."""
        dispatcher.add([RequestCode.INVOKE_BROKER_TO_RESET_OFFSET], self._reset)
        dispatcher.add([RequestCode.GET_CONSUMER_RUNNING_INFO], self._running_info)
        dispatcher.add([RequestCode.CONSUME_MESSAGE_DIRECTLY], self._consume)

    # ---- offsets

    def _reset(self, call: Call) -> RemotingCommand:
        command, asked = call.request, ResetOffset.from_ext(call.request.ext)
        settings = self._topics.settings(asked.topic)
        if settings is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={asked.topic}"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        sessions = cast("list[RemotingSession]", [each.connection for each in self._members.consumers(asked.group)])
        if not sessions and not self._offsets.of_group(asked.topic, asked.group):
            remark = f"THe consumer group <{asked.group}> not exist"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        if not sessions:
            remark = f"Consumer not online, so can not reset offset, Group: {asked.group} Topic: {asked.topic}"
            return command.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
        table = {
            MessageQueue(topic=asked.topic, broker_name=self._broker_name, queue_id=queue): self._offset(asked, queue)
            for queue in range(settings.queues)
        }
        body = ResetOffsets(offset_table=table).to_json(bare_number_keys=True)
        notice = to_request(asked, body, code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET, oneway=True)
        silent = [session.client.peer for session in sessions if not _notify_client(session, notice)]
        if silent:
            remark = f"{len(silent)} of {len(sessions)} clients were not notified, such as {silent[0]}; try again"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        return command.reply(body=body)

    def _offset(self, asked: ResetOffset, queue: int) -> int:
        """Return where a queue is to be read from: at the time, and without force not behind where the group is."""
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
    except MetaqError:  # it is gone, or takes nothing
        return False
    return True
