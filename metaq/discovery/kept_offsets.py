"""What a member of a group knows of the group's offsets, should ZooKeeper lose them. Pure.

An emptied ZooKeeper knows nothing of a group. Each member saves again where it is itself, as soon as it has come back.
Until all have had time to do so, nobody can say of a partition without an offset that the group has never read it: who
joins first would begin where ``start`` says, and what another member had not read yet would be skipped::

    an offset was there before        it waits until this member is back for RETURN_S, then it is written again
    the tree is younger than YOUNG_S  partitions without an offset wait
    else                              the group has never read the partition
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import MetaqError
from metaq.model import TopicPartition
from metaq.net.clock import Clock

RETURN_S: Final = 2.0
"""How long other members have to come back, which may know a later offset than what this one has seen."""

YOUNG_S: Final = 5.0
"""How long members have to come back, and to write again what they have seen."""


class OffsetAway(MetaqError):
    """A group has no offset in ``where``, and ZooKeeper may just have lost it."""

    retryable = True

    def __init__(self, where: TopicPartition) -> None:
        super().__init__(where)

    def __str__(self) -> str:
        return f"ZooKeeper has no offset in {self.args[0]}, and may have lost it; waiting for members that know it"


class KeptOffsets:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[TopicPartition, GroupOffset] = {}
        self._lost: set[TopicPartition] = set()
        self._returned_s = self._known_s = 0.0

    def registered(self, tree_age_s: float) -> None:
        """The consumer has become a member in a new session; the tree is so old."""
        now_s = self._clock.monotonic()
        self._returned_s = now_s + RETURN_S
        self._known_s = now_s + max(0.0, YOUNG_S - tree_age_s)

    def look(
        self, partitions: Collection[TopicPartition], offsets: Mapping[TopicPartition, GroupOffset]
    ) -> dict[TopicPartition, GroupOffset]:
        """Take note of ``offsets``, all that the group has in ``partitions`` now; return what is to be written again
        of them.
        """
        self._seen |= offsets
        self._lost = (set(partitions) & self._seen.keys()) - offsets.keys()
        if self._clock.monotonic() < self._returned_s:
            return {}
        return {where: self._seen[where] for where in self._lost}

    @property
    def look_again_s(self) -> float | None:
        """When to look again, without a change: offsets are lost; ``None``: they are not."""
        return max(0.1, self._returned_s - self._clock.monotonic()) if self._lost else None

    def check_unread(self, where: TopicPartition) -> None:
        """Return if the group has never read a partition, which has no offset.

        Raises:
            OffsetAway: That is not known yet.
        """
        if where in self._seen or self._clock.monotonic() < self._known_s:
            raise OffsetAway(where)
