"""Offsets of a group that a member remembers in case ZooKeeper loses them. Pure.

An emptied ZooKeeper has no offsets of a group. Each member saves its own positions again when it has rejoined. Until
all members have had time to do so, a partition without an offset may still have been read: a member that started there
would begin at ``start`` and skip messages that another member had not read yet::

    an offset existed before          wait until this member is back for RETURN_S, then write it again
    the tree is younger than YOUNG_S  partitions without an offset wait
    otherwise                         the group has never read the partition
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import MetaqError
from metaq.model import TopicPartition
from metaq.net.clock import Clock

RETURN_S: Final = 2.0
"""Time for other members to rejoin, which may know a later offset than this one."""

YOUNG_S: Final = 5.0
"""Time for members to rejoin and to write their offsets again."""


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
        """The consumer has joined in a new session; the tree has this age."""
        now_s = self._clock.monotonic()
        self._returned_s = now_s + RETURN_S
        self._known_s = now_s + max(0.0, YOUNG_S - tree_age_s)

    def look(
        self, partitions: Collection[TopicPartition], offsets: Mapping[TopicPartition, GroupOffset]
    ) -> dict[TopicPartition, GroupOffset]:
        """Record ``offsets``, all current offsets of the group in ``partitions``; return the lost ones to
        write again.
        """
        self._seen |= offsets
        self._lost = (set(partitions) & self._seen.keys()) - offsets.keys()
        if self._clock.monotonic() < self._returned_s:
            return {}
        return {where: self._seen[where] for where in self._lost}

    @property
    def look_again_s(self) -> float | None:
        """Seconds until the next check, if offsets are lost; else ``None``."""
        return max(0.1, self._returned_s - self._clock.monotonic()) if self._lost else None

    def check_unread(self, where: TopicPartition) -> None:
        """Check that the group has never read a partition without an offset.

        Raises:
            OffsetAway: It is not known yet.
        """
        if where in self._seen or self._clock.monotonic() < self._known_s:
            raise OffsetAway(where)
