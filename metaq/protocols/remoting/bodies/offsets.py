"""Tables of offsets. Java writes their numbers and queues as bare keys; both forms are read."""

from __future__ import annotations

from dataclasses import dataclass, field

from metaq.protocols.remoting.bodies.groups import MessageQueue
from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.bodies.registration import DataVersion
from metaq.protocols.remoting.wire_types import I32, I64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOffsets(JsonBody):
    """``topic@group`` -> queue -> offset to read next."""

    offset_table: dict[str, dict[I32, I64]] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayOffsets(JsonBody):
    """Delay level -> queue offset up to which its messages have been delivered."""

    offset_table: dict[I32, I64] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffset(JsonBody):
    """The stored range of a queue, and the time of its last message (milliseconds)."""

    min_offset: I64 = 0
    max_offset: I64 = 0
    last_update_timestamp: I64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats(JsonBody):
    """The offsets of a topic's queues."""

    NAME = "TopicStatsTable"

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOffset(JsonBody):
    """The end of a queue and the group's offset; the time belongs to the last consumed message (milliseconds)."""

    broker_offset: I64 = 0
    consumer_offset: I64 = 0
    pull_offset: I64 | None = None
    last_timestamp: I64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStats(JsonBody):
    """A group's offsets by queue, and messages a second."""

    offset_table: dict[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsets(JsonBody):
    """Offsets that were set."""

    NAME = "ResetOffsetBody"

    offset_table: dict[MessageQueue, I64] = field(default_factory=dict)
