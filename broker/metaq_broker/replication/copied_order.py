"""Partitions that are copied behind all others: what they say of other partitions must be true of the copies, too.

A message of such a topic says that something is stored elsewhere, such as that a half message was delivered. Its copy
is a promise that the other copies have to keep. So these topics are copied to where they ended at a moment of which
everything else was copied already: a *goal* is what the master held at a moment; when the other partitions have reached
it, these may go up to it, and the next goal is what the master holds by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.replication.peer import PartitionKey, StoredRange

StoredRanges = Mapping[PartitionKey, StoredRange]


def first_missing(stores: TopicStores, goal: StoredRanges) -> PartitionKey | None:
    """Return a partition of which less is readable here than ``goal`` says, ``None`` if there is none."""
    for partition_key, original in goal.items():
        log = stores.get(*partition_key)
        if log is None or log.readable_end < original.readable_end:
            return partition_key
        if original.incarnation is not None and log.incarnation != original.incarnation:
            return partition_key
    return None


def still_there(goal: StoredRanges, now: StoredRanges) -> StoredRanges:
    """Return ``goal`` without partitions that the master does not have any more, or that are others ``now``."""
    return {
        partition_key: original
        for partition_key, original in goal.items()
        if partition_key in now and now[partition_key].incarnation == original.incarnation
    }


class CopiedOrder:
    """``last`` are the names of the topics that are copied behind all others."""

    def __init__(self, stores: TopicStores, last: Set[str]) -> None:
        self._stores, self._last = stores, last
        self._goal: StoredRanges | None = None
        self._allowed: StoredRanges = {}

    def forget(self) -> None:
        """Begin anew, such as with another connection."""
        self._goal, self._allowed = None, {}

    def look(self, view: StoredRanges) -> StoredRanges:
        """Return what may be copied of ``view``, which is what the master holds now."""
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
