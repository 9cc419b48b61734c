"""Rejected RocketMQ messages, stored on this machine until they are replayed or discarded.

Source: docs/client.md, "When a handler fails".
"""

from __future__ import annotations

import json
from typing import Final

from metaq.client.groups.parking import ParkedStore
from metaq.client.rocketmq.records import RocketReceived
from metaq.model import Partition

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS parked_rocketmq (
    number INTEGER PRIMARY KEY AUTOINCREMENT, group_id TEXT NOT NULL, topic TEXT NOT NULL, part TEXT NOT NULL,
    position INTEGER NOT NULL, message_id TEXT NOT NULL, offset_message_id TEXT NOT NULL, stored_ms INTEGER NOT NULL,
    born_ms INTEGER NOT NULL, born_host TEXT NOT NULL, tag TEXT, keys TEXT NOT NULL, properties TEXT NOT NULL,
    times INTEGER NOT NULL, body BLOB NOT NULL, reason TEXT NOT NULL, parked_ms INTEGER NOT NULL,
    UNIQUE (group_id, topic, part, offset_message_id)
)"""


class RocketParkedMessages(ParkedStore[RocketReceived]):
    """The parked messages of a RocketMQ group, in the same file as MetaQ's; see ``ParkedStore``."""

    table, schema = "parked_rocketmq", _TABLE
    columns = (
        *("topic", "part", "position", "message_id", "offset_message_id", "stored_ms", "born_ms", "born_host"),
        *("tag", "keys", "properties", "times", "body"),
    )

    def _values(self, message: RocketReceived) -> tuple[object, ...]:
        return (
            *(message.topic, str(message.partition), message.offset, message.message_id, message.offset_message_id),
            *(message.timestamp_ms, message.born_timestamp_ms, message.born_host, message.tag),
            *(json.dumps(message.keys), json.dumps(dict(message.properties)), message.reconsume_times, message.data),
        )

    def _message(self, values: tuple[object, ...]) -> RocketReceived:
        topic, part, position, message_id, broker_id, stored_ms, born_ms, born_host, tag, keys, properties, *rest = (
            values
        )
        times, body = rest
        return RocketReceived(
            topic=str(topic),
            partition=Partition.parse_any(str(part)),
            offset=self._integer(position),
            message_id=str(message_id),
            offset_message_id=str(broker_id),
            timestamp_ms=self._integer(stored_ms),
            born_timestamp_ms=self._integer(born_ms),
            born_host=str(born_host),
            tag=None if tag is None else str(tag),
            keys=tuple(json.loads(str(keys))),
            properties=json.loads(str(properties)),
            reconsume_times=self._integer(times),
            data=body if isinstance(body, bytes) else b"",
        )
