"""What a program sends and receives, as small immutable records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from metaq.formats.frames import Frame
from metaq.formats.message_id import timestamp_ms
from metaq.formats.rocketmq.compression import decompress
from metaq.formats.rocketmq.properties import parse_properties
from metaq.model import Partition, TopicPartition

R = TypeVar("R")


def made_directly(record: type[R]) -> type[R]:
    """Have a frozen, slotted, keyword-only dataclass set its slots by their descriptors.

    The ``__init__`` of a frozen dataclass looks each field up by name, which takes more than half of the time in which
    a consumer hands out a message. The signature stays as it is.
    """
    names = [one.name for one in fields(record)]  # type: ignore[arg-type]
    stores = {f"set_{name}": getattr(record, name).__set__ for name in names}
    parameters, steps = ", ".join(names), "".join(f"    set_{name}(self, {name})\n" for name in names)
    scope: dict[str, Any] = {}
    exec(f"def __init__(self, *, {parameters}):\n{steps}", stores, scope)  # as dataclasses itself does
    direct, generated = scope["__init__"], record.__init__
    direct.__kwdefaults__, direct.__annotations__ = generated.__kwdefaults__, generated.__annotations__
    direct.__qualname__, direct.__module__ = generated.__qualname__, record.__module__
    record.__init__ = direct  # type: ignore[method-assign]
    return record


@made_directly
@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An acknowledged message: where the broker stored it. ``offset`` is the byte position of its frame."""

    topic: str
    partition: Partition
    offset: int
    message_id: int


@made_directly
@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as it is stored.

    ``offset`` is the byte position of its frame and ``end`` that of the frame behind it, from which a reader goes on.
    ``timestamp_ms`` is when the broker took the message, in ms since 1970; ``None`` for ids that tell no time (a Java
    broker's). ``attribute`` is ``None`` if the message has none. Of a message that a RocketMQ client sent, it is the
    tag, ``properties`` has all properties, and ``data`` is decompressed; of others ``properties`` is ``None``.
    """

    topic: str
    partition: Partition
    offset: int
    end: int
    message_id: int
    timestamp_ms: int | None
    attribute: str | None
    data: bytes = field(repr=False)
    properties: Mapping[str, str] | None = None

    @classmethod
    def of(cls, where: TopicPartition, frame: Frame) -> Received:
        """Return the message of ``frame``, which was read from ``where``.

        Raises:
            CorruptFrame: The frame announces an attribute that it does not hold.
            CodecMissing: A RocketMQ client compressed the body, and the package for that is not installed.
            CorruptRecord: The body cannot be decompressed.
        """
        message, fields = frame.message, frame.stored_fields
        return cls(
            topic=where.topic,
            partition=where.partition,
            offset=frame.offset,
            end=frame.end,
            message_id=frame.message_id,
            timestamp_ms=timestamp_ms(frame.message_id),
            attribute=message.attribute,
            data=message.payload if fields is None else decompress(message.payload, fields.sys_flag),
            properties=None if fields is None else parse_properties(fields.properties),
        )
