"""Messages as a consumer of a group delivers them, and their creation from a run of frames."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat, starmap
from typing import ClassVar, Protocol, Self, TypeVar

from metaq.client.records import Origin, Received, content_of
from metaq.errors import CodecMissing, CorruptFrame, CorruptRecord
from metaq.formats.frames import Frame, intact
from metaq.model import Partition, TopicPartition


class HandedOut(Protocol):
    """What the parts of a consumer need to know of a message, in either system."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> Partition: ...

    @property
    def where(self) -> TopicPartition: ...

    @property
    def offset(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def message_id(self) -> int | str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def generation(self) -> int: ...

    @property
    def epoch(self) -> ReadEpoch: ...

    def again(self, refusals: int = 1) -> Self: ...


D = TypeVar("D", bound=HandedOut)
"""The message class of a consumer."""
D_contra = TypeVar("D_contra", bound=HandedOut, contravariant=True)


class Settler(Protocol):
    """Receives acknowledgements."""

    def acknowledge(self, delivery: HandedOut) -> None: ...


class ReadEpoch(Origin):
    """A partition as it is read from one offset on, until it is lost, rolled back or repositioned.

    All messages of an epoch share it. Messages of an epoch that has ended cannot be settled any more.
    """

    __slots__ = ("generation", "settler")

    attempt: ClassVar[int] = 1

    def __init__(self, where: TopicPartition, generation: int, settler: Settler) -> None:
        super().__init__(where)
        self.generation, self.settler = generation, settler

    @property
    def epoch(self) -> ReadEpoch:
        return self

    def again(self) -> ReadEpoch:
        """Return a new epoch of the same partition."""
        return ReadEpoch(self.where, self.generation, self.settler)


class OwnOrigin(Origin):
    """The origin of a message that has an attribute or properties, or is delivered again."""

    __slots__ = ("attempt", "epoch")

    def __init__(
        self,
        epoch: ReadEpoch,
        attribute: str | None,
        properties: Mapping[str, str] | None,
        end: int | None,
        attempt: int = 1,
    ) -> None:
        super().__init__(epoch.where, attribute, properties, end)
        self.epoch, self.attempt = epoch, attempt


class Delivery(Received):
    """A message of a consumer group. ``attempt`` counts its deliveries by this consumer, from 1."""

    __slots__ = ()

    _origin: ReadEpoch | OwnOrigin

    __init__ = object.__init__  # the functions of this module set the slots

    _shown: ClassVar[tuple[str, ...]] = (*Received._shown, "attempt", "generation")

    @property
    def attempt(self) -> int:
        return self._origin.attempt

    @property
    def generation(self) -> int:
        """The assignment in which this consumer got the partition."""
        return self._origin.epoch.generation

    @property
    def epoch(self) -> ReadEpoch:
        """The epoch in which it was read; for internal use."""
        return self._origin.epoch

    def ack(self) -> None:
        """Settle this message: the position moves past it once all earlier messages of the partition are settled, too.

        Raises:
            PartitionLost: The partition has been released, or the message was rolled back.
        """
        self._origin.epoch.settler.acknowledge(self)

    def again(self, refusals: int = 1) -> Delivery:
        """Return the delivery that follows if this one is refused ``refusals`` times."""
        one: Delivery = Delivery()
        one._data, one._offset, one._message_id = self._data, self._offset, self._message_id
        was = self._origin
        one._origin = OwnOrigin(was.epoch, was.attribute, was.properties, was.end, was.attempt + refusals)
        return one


def deliveries_in(
    run: bytes, start: int, base_offset: int, count_max: int, epoch: ReadEpoch
) -> tuple[list[Delivery], int]:
    """Return the messages of the whole, intact frames from byte ``start`` of a run on, and where they end in the run.

    Stops before a frame that is cut, damaged, or compressed with a codec that is not installed. ``base_offset`` is the
    offset of the run's first byte. Most of the time of reading is spent here, so calls are avoided, and the iterator
    creates the objects.
    """
    found: list[Delivery] = []
    add, made = found.append, starmap(Delivery, repeat((), count_max))
    one: Delivery
    for one, (end, one._message_id, flag, checksum, one._data) in zip(made, intact(run, start), strict=False):
        one._offset, one._origin = base_offset + start, epoch
        if flag:
            frame = Frame(one._offset, one._message_id, flag, checksum, one._data)
            try:
                one._data, attribute, properties = content_of(frame)
            except (CorruptFrame, CorruptRecord, CodecMissing):
                break
            one._origin = OwnOrigin(epoch, attribute, properties, frame.end)
        add(one)
        start = end
    return found, start


class _Settled:
    """Receives acknowledgements of messages that were settled before."""

    def acknowledge(self, delivery: HandedOut) -> None:
        """Do nothing."""


def parked_delivery(message: Received, attempt: int) -> Delivery:
    """Return the delivery of a message that was parked: its offset has moved on, so ``ack`` changes nothing."""
    one: Delivery = Delivery()
    one._data, one._offset, one._message_id = message.data, message.offset, message.message_id
    epoch = ReadEpoch(message.where, 0, _Settled())
    one._origin = OwnOrigin(epoch, message.attribute, message.properties, message.end, attempt)
    return one


def delivery_of(frame: Frame, epoch: ReadEpoch) -> Delivery:
    try:
        data, attribute, properties = content_of(frame)
    except CorruptRecord as error:
        raise CorruptFrame(str(epoch.where), frame.offset, f"{error.where}: {error.reason}") from None
    one: Delivery = Delivery()
    one._data, one._offset, one._message_id = data, frame.offset, frame.message_id
    one._origin = OwnOrigin(epoch, attribute, properties, frame.end)
    return one
