"""The records that a program sends and receives: small and immutable."""

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
    """Make ``__init__`` of a frozen, slotted, keyword-only dataclass set its slots through their descriptors.

    The generated ``__init__`` looks each field up by name, which takes more than half of the time of delivering a
    message. The signature does not change.
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
    """Return a function that creates a frozen, slotted record from its fields in order, four times as fast as the
    class.

    Calling a class with keywords creates a dict, and a frozen class cannot assign attributes directly. So the object is
    created and filled as an instance of an unfrozen class with the same slots; then its class is changed.
    """
    names = [one.name for one in fields(record)]  # type: ignore[arg-type]
    unfrozen = type(record.__name__, (), {"__slots__": record.__slots__})  # type: ignore[attr-defined]
    steps = "".join(f"    self.{name} = {name}\n" for name in names)
    text = f"({', '.join(names)}):\n    self = unfrozen()\n{steps}    self.__class__ = record\n    return self\n"
    made: Callable[..., R] = _defined("make", text, {"unfrozen": unfrozen, "record": record})
    return made


def _defined(name: str, text: str, scope: dict[str, Any]) -> Any:
    """Define a function from its parameters and body, as ``dataclasses`` does; it sees the names of ``scope``."""
    exec(f"def {name}{text}", scope)
    return scope[name]


@made_directly
@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Where the broker stored an acknowledged message. ``offset`` is the byte position of its frame."""

    topic: str
    partition: Partition
    offset: int
    message_id: int


sent_at: Final[Callable[[str, Partition, int, int], Sent]] = maker(Sent)
"""Create a ``Sent`` from topic, partition, offset and message id."""


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
    """Where a message was read from, and its fields beside the data. Messages of a partition share one if nothing
    differs.

    ``end`` is ``None`` if the next frame begins right after the data.
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
    """Return bytes unchanged, or a text as UTF-8.

    Raises:
        TypeError: ``given`` is neither; the error names its type and ``what``.
        ValueError: The text has half of a surrogate pair, which is not a character.
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
    """Check that an argument can name a topic.

    Raises:
        TypeError: It is not a text.
    """
    if not isinstance(given, str):
        raise TypeError(f"topic {given!r}: expected a text, got {type(given).__name__}")


def require_list(messages: object) -> None:
    """Check that an argument is a list of messages.

    Raises:
        TypeError: It is a single text or bytes, each item of which would become a message.
    """
    if isinstance(messages, str | bytes | bytearray | memoryview):
        raise TypeError(f"messages: expected a list of messages, got {type(messages).__name__}; send takes one")


class Received:
    """A message as it is stored. Immutable.

    ``offset`` is the byte position of its frame; ``end`` is the position of the next frame, where a reader continues.
    ``timestamp_ms`` is when the broker stored the message, in ms since 1970; ``None`` for ids that hold no time (a Java
    broker's). ``attribute`` is ``None`` if the message has none. If a RocketMQ client sent the message, ``attribute``
    is the tag, ``properties`` has all properties, and ``data`` is decompressed; else ``properties`` is ``None``.

    Not a dataclass: a consumer creates hundreds of thousands a second, and a frozen one would take most of that time.
    """

    __slots__ = ("_data", "_message_id", "_offset", "_origin")

    _origin: Origin
    _shown: ClassVar[tuple[str, ...]] = (
        *("topic", "partition", "offset", "end", "message_id", "timestamp_ms", "attribute", "properties"),
    )
    """The attributes that ``repr`` shows and that, with the data, decide equality."""

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
        """The partition that the message was read from."""
        return self._origin.where

    @property
    def topic(self) -> str:
        return self._origin.where.topic

    @property
    def partition(self) -> Partition:
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
        """The id that its broker gave it."""
        return self._message_id

    @property
    def timestamp_ms(self) -> int | None:
        return timestamp_ms(self._message_id)

    @property
    def attribute(self) -> str | None:
        return self._origin.attribute

    @property
    def data(self) -> bytes:
        """The payload."""
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
