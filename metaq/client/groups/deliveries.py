"""A message as a consumer of a group hands it out, and the state of one that is not settled yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

from metaq.client.records import Received, made_directly
from metaq.model import Partition, TopicPartition


class InHand:
    """A message that was handed out: ``[offset, end)``, and whether it has been settled (acknowledged or rejected)."""

    __slots__ = ("dropped", "end", "message_id", "offset", "settled")

    def __init__(self, offset: int, end: int, message_id: int) -> None:
        self.offset, self.end, self.message_id = offset, end, message_id
        self.settled = False
        self.dropped = False
        """Whether it was rolled back: it is handed out again, as another delivery."""


class HandedOut(Protocol):
    """What the parts of a consumer need to know of a message, whatever its system."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> Partition: ...

    @property
    def where(self) -> TopicPartition: ...

    @property
    def offset(self) -> int: ...

    @property
    def message_id(self) -> int | str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def generation(self) -> int: ...

    @property
    def entry(self) -> InHand: ...

    def again(self) -> Self: ...


D = TypeVar("D", bound=HandedOut)
"""The class of a consumer's messages."""
D_contra = TypeVar("D_contra", bound=HandedOut, contravariant=True)


class Settler(Protocol[D_contra]):
    """Who takes acknowledgements."""

    def acknowledge(self, delivery: D_contra) -> None: ...


@made_directly
@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Received):
    """A message of a consumer group. ``attempt`` counts its deliveries in this consumer, from 1."""

    attempt: int
    generation: int
    entry: InHand = field(repr=False, compare=False)
    settler: Settler[Delivery] = field(repr=False, compare=False)

    @property
    def where(self) -> TopicPartition:
        """The partition that it was read from."""
        return TopicPartition(self.topic, self.partition)

    def ack(self) -> None:
        """Settle this message: the position moves past it once all earlier ones of its partition are settled, too.

        Raises:
            PartitionLost: The partition has been released, or the message was rolled back.
        """
        self.settler.acknowledge(self)

    def again(self) -> Delivery:
        """Return the delivery that comes next, if this one is refused."""
        return replace(self, attempt=self.attempt + 1)
