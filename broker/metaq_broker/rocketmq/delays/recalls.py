"""Recall of timed messages: 370, with the handle in the response to their send.

::

    handle = base64 (URL-safe) of: v1 TOPIC BROKER DUE_MS ID      with a blank between

Clients read the topic and the broker's name in it. ID is the offset message id of the waiting message, instead of
RocketMQ's UNIQ_KEY, so no index is needed to find it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from typing import Final

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.properties import UNIQ_KEY
from metaq.formats.rocketmq.records import Record
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.sends import RecallMessage, RecallMessageResponse
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.files.errors import StateNotWritten
from metaq_broker.rocketmq.delays.delays import HANDLE_VERSION
from metaq_broker.rocketmq.delays.timed_queue import TimedQueue
from metaq_broker.rocketmq.delays.waiting_messages import REAL_TOPIC
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.messages.message_store import MessageStore, OutgoingMessage
from metaq_broker.rocketmq.session import Call
from metaq_broker.rocketmq.system_topics import TIMER_TOPIC

_PARTS: Final = 5


class RecallRequests:
    def __init__(self, store: MessageStore, timed: TimedQueue[OutgoingMessage]) -> None:
        self._store, self._timed = store, timed

    def mount(self, dispatcher: Dispatcher) -> None:
        dispatcher.add([RecallMessage.CODE], self._recall)

    def _recall(self, call: Call) -> RemotingCommand | None:
        asked, command = RecallMessage.from_ext(call.request.ext), call.request
        try:
            topic, place = _decode(asked.recall_handle)
        except ValueError as error:
            return command.reply(ResponseCode.INVALID_PARAMETER, remark=f"recall failed, {error}")
        if topic != asked.topic:
            remark = f"recall failed, the handle is of topic {topic}"
            return command.reply(ResponseCode.INVALID_PARAMETER, remark=remark)
        record = self._store.find(place)
        if isinstance(record, Refusal) or not _waits_for(record, topic) or not self._timed.waits(record.queue_offset):
            remark = "recall failed, the message does not wait, or no more"
            return command.reply(ResponseCode.INVALID_PARAMETER, remark=remark)
        message_id = record.property_map().get(UNIQ_KEY) or record.offset_message_id

        def saved(error: Exception | None) -> None:
            if error is None:
                call.answer(command.reply(ext=RecallMessageResponse(msg_id=message_id).ext()))
            elif isinstance(error, StateNotWritten):
                remark = f"the message is recalled, unless the broker ends before that is on the disk: {error}"
                call.answer(command.reply(ResponseCode.SYSTEM_ERROR, remark=remark))
            else:
                remark = f"recall failed, the message still waits: {error}"
                call.answer(command.reply(ResponseCode.SYSTEM_ERROR, remark=remark))

        self._timed.recall(record.queue_offset, saved)
        return None


def _waits_for(record: Record, topic: str) -> bool:
    return record.topic == TIMER_TOPIC and record.property_map().get(REAL_TOPIC) == topic


def _decode(handle: str) -> tuple[str, int]:
    """Return topic and position in a handle.

    Raises:
        ValueError: It is not a handle.
    """
    try:
        parts = urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode().split(" ")
    except ValueError:
        raise ValueError("the handle is no base64") from None
    if len(parts) != _PARTS or parts[0] != HANDLE_VERSION:
        raise ValueError(f"the handle is not of version {HANDLE_VERSION}")
    return parts[1], OffsetMessageId.parse(parts[4]).physical_offset
