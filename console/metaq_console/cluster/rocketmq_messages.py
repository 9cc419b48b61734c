"""Messages of RocketMQ in the form of both systems."""

from __future__ import annotations

from metaq.client.rocketmq.records import RocketReceived
from metaq_console.cluster.values import FoundMessage


def stored_message(message: RocketReceived) -> FoundMessage:
    return FoundMessage(
        topic=message.topic,
        partition=str(message.partition),
        offset=message.offset,
        next_offset=message.end,
        message_id=message.message_id,
        timestamp_ms=message.timestamp_ms,
        attribute=message.tag,
        keys=message.keys,
        properties=message.properties,
        attempts=message.reconsume_times,
        data=message.data,
    )
