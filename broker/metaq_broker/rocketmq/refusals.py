"""Converts the engine's refusals into RocketMQ's codes and sentences.

A Java producer tries another broker after 1, 2, 14, 16 and 17; 13 is the sender's fault.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from metaq.protocols.remoting.codes import VERSION_5, ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq_broker.log.engine import outcomes
from metaq_broker.log.engine.outcomes import Refusal

_NOT_AVAILABLE: Final = (
    outcomes.DiskFull,
    outcomes.ClockImplausible,
    outcomes.PartitionLimit,
    outcomes.PartitionUnavailable,
    outcomes.NotMaster,
    outcomes.SlaveOutOfSync,
)


class Refused(NamedTuple):
    """A response code and its remark."""

    code: int
    remark: str


def invalid_parameter(command: RemotingCommand) -> int:
    """Return the code for a wrong name or queue, by the version of the client."""
    is_new = command.version >= VERSION_5
    return ResponseCode.INVALID_PARAMETER if is_new else ResponseCode.SYSTEM_ERROR


def worded(topic: str, queue: int, refusal: Refusal) -> Refused:
    """Return code and sentence of a refusal."""
    if isinstance(refusal, outcomes.TopicUnknown):
        return unknown_topic(topic)
    if isinstance(refusal, outcomes.PartitionUnknown):
        return Refused(ResponseCode.SYSTEM_ERROR, f"queueId[{queue}] is illegal, topic:[{topic}]")
    if isinstance(refusal, outcomes.PartitionClosed):
        return Refused(ResponseCode.NO_PERMISSION, f"queue {queue} of topic[{topic}] was closed by an operator")
    if isinstance(refusal, outcomes.TooLarge | outcomes.BlockInvalid):
        return Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {_reason(refusal)}")
    if isinstance(refusal, _NOT_AVAILABLE):
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {refusal.reason}")
    return Refused(ResponseCode.SYSTEM_ERROR, f"the request failed: {_reason(refusal)}")


def unknown_topic(topic: str) -> Refused:
    """Return code and sentence for a topic that is not there."""
    return Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")


def _reason(refusal: Refusal) -> str:
    return str(getattr(refusal, "reason", refusal))
