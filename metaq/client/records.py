"""What a program sends and receives, as small immutable records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, TypeVar

from metaq.formats.frames import HEADER_BYTES, Frame
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
    scope = {f"set_{name}": getattr(record, name).__set__ for name in names}
    steps = "".join(f"    set_{name}(self, {name})\n" for name in names)
    direct = _defined("__init__", f"(self, *, {', '.join(names)}):\n{steps}", scope)
    generated = record.__init__
    direct.__kwdefaults__, direct.__annotations__ = generated.__kwdefaults__, generated.__annotations__
    direct.__qualname__, direct.__module__ = generated.__qualname__, record.__module__
    record.__init__ = direct  # type: ignore[method-assign]
    return record


def maker(record: type[R]) -> Callable[..., R]:
    """Return a function of all fields in their order that makes a frozen, slotted record in a quarter of the time.

    What calls a class with keywords makes a dict of them, and a frozen record sets no attribute. So the object is made,
    and filled, as one of a class with the same slots that is not frozen.
    """
    names = [one.name for one in fields(record)]  # type: ignore[arg-type]
    unfrozen = type(record.__name__, (), {"__slots__": record.__slots__})  # type: ignore[attr-defined]
    steps = "".join(f"    self.{name} = {name}\n" for name in names)
    text = f"({', '.join(names)}):\n    self = unfrozen()\n{steps}    self.__class__ = record\n    return self\n"
    made: Callable[..., R] = _defined("make", text, {"unfrozen": unfrozen, "record": record})
    return made


def _defined(name: str, text: str, scope: dict[str, Any]) -> Any:
    """Define a function by its parameters and body, as ``dataclasses`` itself does; it sees the names of ``scope``."""
    exec(f"def {name}{text}", scope)
    return scope[name]


@made_directly
@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An acknowledged message: where the broker stored it. ``offset`` is the byte position of its frame."""

    topic: str
    partition: Partition
    offset: int
    message_id: int


sent_at: Final[Callable[[str, Partition, int, int], Sent]] = maker(Sent)
"""(topic, partition, offset, message id) -> the record."""


def content_of(frame: Frame) -> tuple[bytes, str | None, Mapping[str, str] | None]:
    """Return the data, the attribute and the properties of a frame, as ``Received`` has them.

    Raises:
        CorruptFrame: The frame announces an attribute that it does not hold.
        CodecMissing: A RocketMQ client compressed the body, and the package for that is not installed.
        CorruptRecord: The body cannot be decompressed.
    """
    data, attribute = frame.split()
    fields = frame.stored_fields
    if fields is None:
        return data, attribute, None
    return decompress(data, fields.sys_flag), attribute, parse_properties(fields.properties)


class Origin:
    """Where a message was read, and what it has beside its data. All of a partition that have nothing else share one.

    ``end`` is ``None`` if the next frame is right behind the data.
    """

    __slots__ = ("attribute", "end", "properties", "where")

    def __init__(
        self,
        where: TopicPartition,
        attribute: str | None = None,
        properties: Mapping[str, str] | None = None,
        end: int | None = None,
    ) -> None:
        self.where, self.attribute, self.properties, self.end = where, attribute, properties, end


def bytes_of(given: object, what: str) -> bytes:
    """Return bytes, or a text as UTF-8.

    Raises:
        TypeError: It is neither; the text says what it is, and ``what`` it was to be.
        ValueError: The text has half of a surrogate pair, which is no character.
    """
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{what}: the text cannot be written as UTF-8, {error.reason}") from None
    if not isinstance(given, bytes | bytearray | memoryview):
        raise TypeError(f"{what}: expected bytes or a text, got {type(given).__name__}")
    return bytes(given)


def require_topic(given: object) -> None:
    """Check an argument that is to name a topic.

    Raises:
        TypeError: It is no text.
    """
    if not isinstance(given, str):
        raise TypeError(f"topic {given!r}: expected a text, got {type(given).__name__}")


def require_list(messages: object) -> None:
    """Check an argument that is to be many messages.

    Raises:
        TypeError: It is one, of which each letter would become a message.
    """
    if isinstance(messages, str | bytes | bytearray | memoryview):
        raise TypeError(f"messages: expected a list of messages, got {type(messages).__name__}; send takes one")


class Received:
    """A message as it is stored. Immutable.

    ``offset`` is the byte position of its frame and ``end`` that of the frame behind it, from which a reader goes on.
    ``timestamp_ms`` is when the broker took the message, in ms since 1970; ``None`` for ids that hold no time (a Java
    broker's). ``attribute`` is ``None`` if the message has none. Of a message that a RocketMQ client sent, it is the
    tag, ``properties`` has all properties, and ``data`` is decompressed; of others ``properties`` is ``None``.

    Not a dataclass: a consumer makes hundreds of thousands a second, and a frozen one takes longer than all the rest.
    """

    __slots__ = ("_data", "_message_id", "_offset", "_origin")

    _origin: Origin
    _shown: ClassVar[tuple[str, ...]] = (
        *("topic", "partition", "offset", "end", "message_id", "timestamp_ms", "attribute", "properties"),
    )
    """What ``repr`` shows. Messages are equal if all of that is, and the data."""

    def __init__(
        self,
        *,
        topic: str,
        partition: Partition,
        offset: int,
        end: int,
        message_id: int,
        attribute: str | None,
        data: bytes,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._offset, self._message_id, self._data = offset, message_id, data
        self._origin = Origin(TopicPartition(topic, partition), attribute, properties, end)

    @classmethod
    def of(cls, where: TopicPartition, frame: Frame) -> Received:
        """Return the message of ``frame``, which was read from ``where``.

        Raises:
            CorruptFrame: The frame announces an attribute that it does not hold.
            CodecMissing: A RocketMQ client compressed the body, and the package for that is not installed.
            CorruptRecord: The body cannot be decompressed.
        """
        data, attribute, properties = content_of(frame)
        return Received(
            topic=where.topic,
            partition=where.partition,
            offset=frame.offset,
            end=frame.end,
            message_id=frame.message_id,
            attribute=attribute,
            data=data,
            properties=properties,
        )

    @property
    def where(self) -> TopicPartition:
        """The partition that it was read from."""
        return self._origin.where

    @property
    def topic(self) -> str:
        """The topic of that."""
        return self._origin.where.topic

    @property
    def partition(self) -> Partition:
        """The partition without its topic."""
        return self._origin.where.partition

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def end(self) -> int:
        end = self._origin.end
        return self._offset + HEADER_BYTES + len(self._data) if end is None else end

    @property
    def message_id(self) -> int:
        """The number that its broker gave it."""
        return self._message_id

    @property
    def timestamp_ms(self) -> int | None:
        return timestamp_ms(self._message_id)

    @property
    def attribute(self) -> str | None:
        return self._origin.attribute

    @property
    def data(self) -> bytes:
        """What was sent."""
        return self._data

    @property
    def properties(self) -> Mapping[str, str] | None:
        return self._origin.properties

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown)
        return f"{type(self).__name__}({shown})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Received) or type(other) is not type(self):
            return NotImplemented
        return self._data == other._data and all(getattr(self, name) == getattr(other, name) for name in self._shown)

    def __hash__(self) -> int:
        return hash((self._origin.where, self._offset, self._message_id))
