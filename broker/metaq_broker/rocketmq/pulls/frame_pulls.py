"""Request 31002: messages as stored frames, for this project's readers. Not a request of RocketMQ.

A pull (11) costs work for each message. Here the broker only finds the boundaries of whole frames, and the bytes are
sent from the file. Permissions are checked as for a pull without subscription.

Source: docs/remoting-protocol.md, "Frames instead of records".
"""

from __future__ import annotations

from functools import partial
from typing import Final

from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.pulls import SUBSCRIPTION, PullFrames, PullFramesResponse, PullMessage
from metaq_broker.log.engine.outcomes import PartitionEmpty, Refusal
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.messages.message_store import MessageStore, NumberPending, ReadRecords, StoredRun
from metaq_broker.rocketmq.pulls.pulls import Pulls
from metaq_broker.rocketmq.refusals import worded
from metaq_broker.rocketmq.session import Call

BODY_BYTES_MAX: Final = 4 << 20
"""Limit on bytes of frames in one response, unless it is a single message."""

MESSAGES_MAX: Final = 1 << 20
"""In one answer."""


class FramePulls:
    """Handler of frame pulls. ``pulls`` checks requests."""

    def __init__(self, store: MessageStore, pulls: Pulls) -> None:
        self._store, self._pulls = store, pulls

    def add_to(self, dispatcher: Dispatcher) -> None:
        dispatcher.add([PullFrames.CODE], self.pull)

    def pull(self, call: Call) -> RemotingCommand | None:
        """Carry out one."""
        asked = PullFrames.from_ext(call.request.ext)
        refused = self._pulls.refusal(call.request, _as_pull(asked))
        if refused is not None:
            return call.request.reply(refused.code, remark=refused.remark)
        return self._look(call, asked)

    def _look(self, call: Call, asked: PullFrames) -> RemotingCommand | None:
        bytes_max = min(max(1, asked.max_msg_bytes), BODY_BYTES_MAX)
        messages_max = min(max(1, asked.max_msg_nums), MESSAGES_MAX)
        found = self._store.stored(asked.topic, asked.queue_id, asked.queue_offset, messages_max, bytes_max)
        if isinstance(found, NumberPending):
            self._store.when_numbered(found, partial(self._numbered, call, asked))
            return None
        if not isinstance(found, StoredRun):
            return _without_messages(call.request, asked, found)
        self._pulls.count(asked.topic, asked.consumer_group, found.end - found.begin, found.file.length)
        fields = PullFramesResponse(
            next_begin_offset=found.end,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
            begin_offset=found.begin,
            physical_offset=found.physical_offset,
            store_host=self._store.store_host.hex(),
            store_timestamp=found.known_ms,
        )
        call.answer_file(call.request.reply(ResponseCode.SUCCESS, fields.ext()), found.file)
        return None

    def _numbered(self, call: Call, asked: PullFrames, refusal: Refusal | None) -> None:
        """Continue when the partition has its number, or gets none."""
        response = self._look(call, asked) if refusal is None else _without_messages(call.request, asked, refusal)
        if response is not None:
            call.answer(response)


def _as_pull(asked: PullFrames) -> PullMessage:
    return PullMessage(
        consumer_group=asked.consumer_group,
        topic=asked.topic,
        queue_id=asked.queue_id,
        queue_offset=asked.queue_offset,
        max_msg_nums=max(0, asked.max_msg_nums),
        sys_flag=SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
    )


def _without_messages(command: RemotingCommand, asked: PullFrames, found: ReadRecords | Refusal) -> RemotingCommand:
    """Return the response where there are no messages, with why."""
    if isinstance(found, PartitionEmpty):
        found = ReadRecords(b"", 0, 0, 0)
    if isinstance(found, Refusal):
        refused = worded(asked.topic, asked.queue_id, found)
        return command.reply(refused.code, remark=refused.remark)
    at_end = asked.queue_offset == found.max_offset
    code = ResponseCode.PULL_NOT_FOUND if at_end else ResponseCode.PULL_OFFSET_MOVED
    return command.reply(code, {"minOffset": str(found.min_offset), "maxOffset": str(found.max_offset)})
