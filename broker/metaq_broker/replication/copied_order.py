"""Partitions that are copied after all others, because their messages refer to messages of other partitions.

A message of such a topic says, for example, that a half message was delivered; the copy of the delivered message must
exist before the copy of that statement. So these topics are copied only up to a *goal*: the ends that all partitions of
the master had at one moment. When the copies of the other partitions have reached the goal, these topics may be copied
up to it, and the master's ends at that time become the next goal.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.replication.peer import PartitionKey, StoredRange

StoredRanges = Mapping[PartitionKey, StoredRange]


def first_missing(stores: TopicStores, goal: StoredRanges) -> PartitionKey | None:
    """Return a partition of which less is readable here than ``goal`` requires; ``None`` if there is none."""
    for partition_key, original in goal.items():
        log = stores.get(*partition_key)
        if log is None or log.readable_end < original.readable_end:
            return partition_key
        if original.incarnation is not None and log.incarnation != original.incarnation:
            return partition_key
    return None


def still_there(goal: StoredRanges, now: StoredRanges) -> StoredRanges:
    """Return ``goal`` without partitions that the master no longer has, or has in another incarnation."""
    return {
        partition_key: original
        for partition_key, original in goal.items()
        if partition_key in now and now[partition_key].incarnation == original.incarnation
    }


class CopiedOrder:
    """``last`` are the names of the topics that are copied after all others."""

    def __init__(self, stores: TopicStores, last: Set[str]) -> None:
        self._stores, self._last = stores, last
        self._goal: StoredRanges | None = None
        self._allowed: StoredRanges = {}

    def forget(self) -> None:
        """Start again, for example after a new connection."""
        self._goal, self._allowed = None, {}

    def look(self, view: StoredRanges) -> StoredRanges:
        """Return the part of ``view`` (the master's current partitions) that may be copied."""
        others = {key: each for key, each in view.items() if key[0] not in self._last}
        if len(others) == len(view):
            self.forget()
            return view
        goal = view if self._goal is None else still_there(self._goal, view)
        if first_missing(self._stores, {key: each for key, each in goal.items() if key in others}) is None:
            self._allowed = {key: each for key, each in goal.items() if key not in others}
            goal = view
        self._goal = goal
        return {**others, **still_there(self._allowed, view)}
