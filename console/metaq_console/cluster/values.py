"""What questions to a cluster return: one class for both systems. The JSON API has the same fields under these names.

Partitions are texts, ``0-3`` or ``broker-a:3``. Ids of messages are texts, because JavaScript has no 64-bit numbers.
Times are milliseconds since 1970. ``None`` means that the brokers do not report the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Unit = Literal["bytes", "messages"]
"""What offsets count, and with them the lag: MetaQ's count bytes, RocketMQ's messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic. Rates are of the last minute."""

    topic: str
    partitions: int
    messages: int | None
    bytes: int | None
    in_per_s: float | None
    """Messages that were stored a second."""
    out_bytes_per_s: float | None
    """Bytes that were sent to readers a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition and what it stores: offsets ``[start, end)``. ``broker`` is the address that serves reads."""

    topic: str
    partition: str
    broker: str
    start: int
    end: int
    messages: int | None
    incarnation: str | None
    last_ms: int | None
    """When the last message was stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """A broker. ``figures`` are its own, under its system's names."""

    name: str
    address: str
    role: str
    version: str | None
    uptime_s: int | None
    messages: int | None
    in_per_s: float | None
    out_per_s: float | None
    disk_used_ratio: float | None
    figures: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    """A message as it is stored; ``next_offset`` is where a reader continues, ``attempts`` how often it was delivered
    again.
    """

    topic: str
    partition: str
    offset: int
    next_offset: int
    message_id: str
    timestamp_ms: int | None
    attribute: str | None
    """MetaQ's attribute, RocketMQ's tag."""
    keys: tuple[str, ...]
    properties: Mapping[str, str] | None
    attempts: int | None
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PassedMessages:
    """Messages that a search has passed: where the next one begins, how many there were, bytes of their values."""

    next_offset: int
    count: int
    value_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A consumer group. ``lag`` is the sum over ``partitions`` partitions; ``error`` says why it is not known."""

    group: str
    members: int | None
    topics: tuple[str, ...]
    partitions: int
    lag: int | None
    unit: Unit
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """A running consumer of a group. MetaQ reports only the id."""

    group: str
    client: str
    address: str | None = None
    language: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRow:
    """A prepared branch of a transaction. ``decided``: whether its broker, of a Spark query, has decided the batch that
    it belongs to; ``None`` for a branch of another program.
    """

    broker: str
    resource: str
    global_id: str
    branch: str
    decided: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """The last batch of a Spark query that a broker has decided."""

    query_id: str
    broker: str
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRows:
    """Open transactions of a cluster of MetaQ, and decisions."""

    prepared: tuple[PreparedRow, ...]
    decisions: tuple[DecisionRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """How far a group is behind in a partition; ``position`` is ``None`` if it has not committed one."""

    group: str
    topic: str
    partition: str
    position: int | None
    end: int
    lag: int
    unit: Unit


def by_topic(rows: Iterable[LagRow]) -> list[LagRow]:
    """Return the sums over the partitions of each topic: rows with a blank ``partition``, without a position.

    Partitions without a position do not count: the group may not read the topic.
    """
    sums: dict[tuple[str, str], LagRow] = {}
    for row in rows:
        if row.position is not None:
            key = (row.group, row.topic)
            before = sums[key].lag if key in sums else 0
            sums[key] = replace(row, partition="", position=None, end=0, lag=before + row.lag)
    return list(sums.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRow:
    """A group's offset in a partition before a reset, and after; ``lag`` is what would be unread then."""

    topic: str
    partition: str
    position: int | None
    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that consumers of a group rejected. ``number`` names it in a resend."""

    number: str
    origin: str | None
    """The topic that it was read from."""
    moved_ms: int | None
    reason: str | None
    message: FoundMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendResult:
    """What became of one dead letter. Without ``error`` it was stored at ``partition`` and ``offset``."""

    number: str
    ok: bool
    topic: str | None
    partition: str | None
    offset: int | None
    removed: bool
    """Whether it is not a dead letter any more; RocketMQ's stay."""
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """What became of one message that was put."""

    ok: bool
    topic: str
    partition: str | None
    offset: int | None
    message_id: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to put. ``attribute`` is MetaQ's attribute, RocketMQ's tag; ``properties`` are RocketMQ's only."""

    data: bytes = field(repr=False)
    attribute: str | None = None
    key: str | None = None
    partition: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
