"""A message as a consumer of a group hands it out, and the state of one that is not settled yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from metaq.client.records import Received


class InHand:
    """A message that was handed out: ``[offset, end)``, and whether it has been settled (acknowledged or rejected)."""

    __slots__ = ("dropped", "end", "message_id", "offset", "settled")

    def __init__(self, offset: int, end: int, message_id: int) -> None:
        self.offset, self.end, self.message_id = offset, end, message_id
        self.settled = False
        self.dropped = False
        """Whether it was rolled back: it is handed out again, as another delivery."""


class Settler(Protocol):
    """Who takes acknowledgements."""

    def acknowledge(self, delivery: Delivery) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Received):
    """A message of a consumer group. ``attempt`` counts its deliveries in this consumer, from 1."""

    attempt: int
    generation: int
    entry: InHand = field(repr=False, compare=False)
    settler: Settler = field(repr=False, compare=False)

    def ack(self) -> None:
        """Settle this message: the position moves past it once all earlier ones of its partition are settled, too.

        Raises:
            PartitionLost: The partition has been released, or the message was rolled back.
        """
        self.settler.acknowledge(self)
