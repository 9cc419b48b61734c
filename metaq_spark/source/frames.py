"""What planning has to know about frames, as questions about many partitions at once.

Many, because a driver that plans for a thousand partitions cannot afford a round trip for each. ``frame_lookup`` asks
the brokers; tests of the planning answer from lists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from metaq.model import OffsetRange, TopicPartition

Place = tuple[TopicPartition, int]
"""An offset of a partition."""


class Cuts(NamedTuple):
    """Ascending ``offsets`` to bring down to frame boundaries; ``floor`` is a boundary at or below all of them."""

    floor: int
    offsets: Sequence[int]


class Skip(NamedTuple):
    """Up to ``messages_max`` (>= 1) messages from the start of ``span``, but none that begins at its end or later.

    ``span`` is not empty and begins at a boundary.
    """

    span: OffsetRange
    messages_max: int


class Skipped(NamedTuple):
    """The boundary behind so many ``messages``: at least one, and above the start of the span."""

    offset: int
    messages: int


class FrameBoundaries(Protocol):
    """Knows where frames begin.

    The answers are for the log as it is: where retention has removed what was asked about, they are at its start.
    """

    def boundaries(self, asked: Mapping[TopicPartition, Cuts]) -> dict[TopicPartition, list[int]]:
        """For each offset the last boundary at or below it."""

    def frame_ends(self, starts: Collection[Place]) -> dict[Place, int]:
        """The boundary behind the frame that starts at each place."""


class MessageCounts(Protocol):
    """Knows how many frames lie between two offsets."""

    def skip(self, asked: Mapping[TopicPartition, Skip]) -> dict[TopicPartition, Skipped]:
        """Where so many messages end, and how many there really are."""


class Frames(FrameBoundaries, MessageCounts, Protocol):
    """Both."""
