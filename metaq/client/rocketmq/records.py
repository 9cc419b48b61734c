"""The records that a program sends to and receives from RocketMQ: small and immutable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from metaq.client.records import bytes_of, made_directly, maker
from metaq.formats.rocketmq.properties import (
    CHECK_IMMUNITY_S,
    DELAY,
    KEYS,
    PRODUCER_GROUP,
    RESERVED,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_MESSAGE,
    UNIQ_KEY,
)
from metaq.formats.rocketmq.records import Record
from metaq.model import Partition

NO_PROPERTIES: Final[Mapping[str, str]] = {}
DELAY_LEVEL_MAX: Final = 18
DELAY_S_MAX: Final = 366 * 86_400
"""Longest ``delay`` that is sent; brokers allow three days unless they are configured otherwise."""

_OWN_NAMES: Final = (
    *(TAGS, KEYS, UNIQ_KEY, DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS),
    *(TRANSACTION_MESSAGE, PRODUCER_GROUP, CHECK_IMMUNITY_S),
)


class UnsendableMessage(ValueError):
    """The message at index ``number`` cannot be sent; no message of the call was sent."""

    def __init__(self, number: int, reason: str) -> None:
        self.number, self.reason = number, reason
        super().__init__(number, reason)

    def __str__(self) -> str:
        return f"message {self.number}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketMessage:
    """A message to send.

    ``data``: a text is sent as UTF-8. ``tag`` is one word by which consumers filter; the message can be looked up by
    its ``keys``. ``properties`` have non-empty names and values. ``delay_level`` 1..18 delays delivery, by 1 s to 2 h
    unless the broker is configured otherwise; 0 does not. Brokers of 5.x and the bundled one also support ``delay``,
    seconds or a ``timedelta``, and ``deliver_at``, a ``datetime`` with a time zone or milliseconds since 1970; a time
    in the past means now.

    Raises:
        TypeError: ``data``, the tag, a key, or a property has a wrong type.
        ValueError: The tag, a key or a delay is not valid; the error says why.
    """

    data: bytes | str = field(repr=False)
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int = 0
    delay: float | timedelta | None = None
    deliver_at: datetime | int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes | bytearray | memoryview | str):
            raise TypeError(f"data: expected bytes or a text, got {type(self.data).__name__}")
        if self.tag is not None or self.keys != ():
            self._check_tag_and_keys()
        if self.delay_level or self.delay is not None or self.deliver_at is not None:
            self._check_delays()
        for name, value in self.properties.items():
            if name in _OWN_NAMES:
                raise ValueError(f"property {name!r}: the client sets it itself, from the other fields of the message")
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"property {name!r}: expected a text, got {type(value).__name__}")

    def _check_tag_and_keys(self) -> None:
        if self.tag is not None:
            _require_text("tag", self.tag)
            if not self.tag or "|" in self.tag or self.tag.strip() != self.tag:
                raise ValueError(f"tag {self.tag!r}: expected a word without | and without blanks around it")
        if isinstance(self.keys, str):
            raise ValueError(f"keys {self.keys!r}: expected a list of keys, not one text")
        for key in self.keys:
            _require_text("key", key)
            if not key or " " in key:
                raise ValueError(f"key {key!r}: expected a text without blanks that is not empty")

    def _check_delays(self) -> None:
        if not 0 <= self.delay_level <= DELAY_LEVEL_MAX:
            raise ValueError(f"delay level {self.delay_level}: expected 0..{DELAY_LEVEL_MAX}")
        if (self.delay_level > 0) + (self.delay is not None) + (self.deliver_at is not None) > 1:
            raise ValueError("delay_level, delay and deliver_at: expected at most one of them")
        if self.delay is not None and not 0 <= _seconds(self.delay) <= DELAY_S_MAX:
            raise ValueError(f"delay {self.delay}: expected seconds, 0..{DELAY_S_MAX}")
        if isinstance(self.deliver_at, datetime) and self.deliver_at.tzinfo is None:
            raise ValueError(f"deliver_at {self.deliver_at}: expected a time with a time zone")
        if self.deliver_at is not None and _milliseconds(self.deliver_at) < 0:
            raise ValueError(f"deliver_at {self.deliver_at}: expected a time after 1970")

    @property
    def is_timed(self) -> bool:
        """Whether ``delay`` or ``deliver_at`` is set: not all brokers support that, and none in a batch."""
        return self.delay is not None or self.deliver_at is not None or TIMER_DELAY_SEC in self.properties

    def body(self) -> bytes:
        """Return the bytes to send.

        Raises:
            ValueError: The text cannot be encoded.
        """
        return bytes_of(self.data, "data")

    def all_properties(self, unique_key: str) -> dict[str, str]:
        """Return the properties to send, including those made from the other fields."""
        found = dict(self.properties)
        if self.tag is not None:
            found[TAGS] = self.tag
        if self.keys:
            found[KEYS] = " ".join(self.keys)
        if self.delay_level:
            found[DELAY] = str(self.delay_level)
        if self.delay is not None:
            found[TIMER_DELAY_MS] = str(round(_seconds(self.delay) * 1000))
        if self.deliver_at is not None:
            found[TIMER_DELIVER_MS] = str(_milliseconds(self.deliver_at))
        found[UNIQ_KEY] = unique_key
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketSent:
    """Where the broker stored an acknowledged message. ``offset`` is its number in the queue.

    ``message_id`` is the id that this client gave (UNIQ_KEY), ``offset_message_id`` the broker's. For a delayed
    message, ``partition`` and ``offset`` refer to the queue in which it waits. ``is_durable`` is false if the broker
    stored it with less durability than configured (the disk was too slow, or a slave was too slow or missing).
    ``recall_handle`` cancels a timed message. ``offset`` is -1 for a message of a transaction.
    """

    topic: str
    partition: Partition
    offset: int
    message_id: str
    offset_message_id: str | None
    is_durable: bool
    recall_handle: str | None = field(default=None, repr=False)


sent_to: Final[Callable[[str, Partition, int, str, str | None, bool, str | None], RocketSent]] = maker(RocketSent)
"""Creates a ``RocketSent`` from topic, queue, offset, message id, the broker's id, durability and recall handle."""


@made_directly
@dataclass(frozen=True, slots=True, kw_only=True)
class RocketReceived:
    """A message as it is stored. ``offset`` is its number in the queue; a reader continues at ``end``.

    ``message_id`` is the producer's id (UNIQ_KEY), else the broker's. Times are in ms since 1970: ``timestamp_ms`` is
    when the broker stored it, ``born_timestamp_ms`` when the producer made it. ``data`` is decompressed. ``properties``
    has all properties.
    """

    topic: str
    partition: Partition
    offset: int
    message_id: str
    offset_message_id: str
    timestamp_ms: int
    born_timestamp_ms: int
    born_host: str
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    reconsume_times: int
    data: bytes = field(repr=False)

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self.offset + 1

    @property
    def attribute(self) -> str | None:
        """The tag, under MetaQ's name for it."""
        return self.tag

    @classmethod
    def of(cls, topic: str, partition: Partition, record: Record) -> RocketReceived:
        """Return the message of ``record``, which was read from a queue.

        Raises:
            CodecMissing: The body is compressed, and the package for that is not installed.
            CorruptRecord: The body cannot be decompressed.
        """
        return cls(**received_fields(topic, partition, record))

    def copy(self) -> RocketMessage:
        """Return a message with the same body, tag, keys and properties, without RocketMQ's own properties.

        Raises:
            ValueError: The tag or a key has a form that this client does not send.
        """
        own = {name: value for name, value in self.properties.items() if name not in RESERVED}
        return RocketMessage(data=self.data, tag=self.tag, keys=self.keys, properties=own)


def received_fields(topic: str, partition: Partition, record: Record) -> dict[str, Any]:
    """Return the fields of ``RocketReceived`` by name. Raises as ``RocketReceived.of``."""
    properties = record.property_map()
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.queue_offset,
        "message_id": properties.get(UNIQ_KEY) or record.offset_message_id,
        "offset_message_id": record.offset_message_id,
        "timestamp_ms": record.store_timestamp,
        "born_timestamp_ms": record.born_timestamp,
        "born_host": record.born_address,
        "tag": properties.get(TAGS),
        "keys": tuple(properties.get(KEYS, "").split()),
        "properties": properties,
        "reconsume_times": record.reconsume_times,
        "data": record.value(),
    }


def _require_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} {value!r}: expected a text, got {type(value).__name__}")


def _seconds(delay: float | timedelta) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay


def _milliseconds(moment: datetime | int) -> int:
    return round(moment.timestamp() * 1000) if isinstance(moment, datetime) else moment
