"""What a member of a group knows of the group's offsets, should ZooKeeper lose them. Pure.

An emptied ZooKeeper knows nothing of a group. Each member saves again where it is itself, as soon as it has come back.
Until all have had time to do so, nobody can say of a partition without an offset that the group has never read it: who
joins first would begin where ``start`` says, and what another member had not read yet would be skipped::

    the tree is younger than RETURN_S          partitions without an offset wait
    an offset was there before                 it waits until this member is back for RETURN_S, then it is written again
    else                                       the group has never read the partition
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import MetaqError
from metaq.model import TopicPartition
from metaq.net.clock import Clock


class OffsetAway(MetaqError):
    """A group has no offset in ``where``, and ZooKeeper may just have lost it."""

    retryable = True

    def __init__(self, where: TopicPartition) -> None:
        super().__init__(where)

    def __str__(self) -> str:
        return f"ZooKeeper has no offset in {self.args[0]}, and may have lost it; waiting for members that know it"


class KeptOffsets:
    """See the module. ``return_s``: how long members have to come back."""

    def __init__(self, return_s: float, clock: Clock) -> None:
        self._return_s, self._clock = return_s, clock
        self._seen: dict[TopicPartition, GroupOffset] = {}
        self._lost: set[TopicPartition] = set()
        self._returned_s = self._known_s = 0.0

    def registered(self, tree_age_s: float) -> None:
        """The consumer has become a member in a new session; the tree is so old."""
        now_s = self._clock.monotonic()
        self._returned_s = now_s + self._return_s
        self._known_s = now_s + max(0.0, self._return_s - tree_age_s)

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
