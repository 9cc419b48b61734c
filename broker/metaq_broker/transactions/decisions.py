"""Decisions record which prepared branches are batch N of a query, which makes a sink exactly-once.

A Spark batch is written by many tasks into branches on several brokers. Tasks may run twice, and drivers may die
between two commits; a record on one broker then tells which branches are *the* batch: (query, batch, branches). The
first record for a batch wins permanently; a later caller gets the first decision, whatever branches it names, and
completes that one. A batch before the last one is refused: a driver that asks for it has been replaced.

A branch key says nothing about its broker here (that is the sink's business). Unknown keys that the caller does not
mark as this broker's own are treated as branches of other brokers and only recorded. Known branches must be prepared,
and are committed by the same record, all or none. An unknown own key refuses the decision, because its messages are not
here.

A decision may describe what the batch contains. The caller's text is kept and returned, so that a driver that repeats
the batch can see whether it is the same one.

The last two decisions of a query are remembered. While they are, COMMIT of a branch that they committed here answers
200 every time, so a driver may repeat it.

Source: docs/adr/0007; the protocol around it is in docs/transactions.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from metaq.model import TransactionId, Xid
from metaq_broker.transactions.outcomes import (
    AlreadyDecided,
    DecisionsFull,
    NewerDecision,
    QueryOver,
    TransactionRefused,
)
from metaq_broker.transactions.records import Decided, Ends

KEPT_PER_QUERY: Final = 2
NO_PARTITION: Final = -1


class Decision(NamedTuple):
    """Batch ``batch_id`` consists of ``branches``, on this broker and others, in the order given."""

    batch_id: int
    branches: tuple[Xid, ...]
    contents: str | None = None
    """The description of the batch's contents that came with the decision."""


class Decisions:
    """The remembered decisions. ``byte_limit`` limits the size of all their keys together."""

    def __init__(self, byte_limit: int) -> None:
        self._byte_limit = byte_limit
        self._byte_count = 0
        self._queries: dict[str, dict[int, Decided]] = {}
        self._here: dict[Xid, tuple[str, int]] = {}

    def last(self, query_id: str) -> Decision | None:
        kept = self._queries.get(query_id)
        if not kept:
            return None
        newest = kept[max(kept)]
        return Decision(newest.batch_id, newest.branches, newest.contents)

    def recorded(self, query_id: str, batch_id: int) -> Decision | None:
        """Return the decision for a batch; ``None`` if it may be decided now.

        Raises:
            TransactionRefused: A later batch has been decided.
        """
        last = self.last(query_id)
        if last is None or batch_id > last.batch_id:
            return None
        if batch_id < last.batch_id:
            raise TransactionRefused(NewerDecision(query_id, batch_id, last.batch_id))
        return last

    def check_capacity(self, decided: Decided) -> None:
        """Check that a decision fits within ``byte_limit``.

        Raises:
            TransactionRefused: The limit would be exceeded.
        """
        released = sum(_size(old) for old in self._displaced_by(decided))
        if self._byte_count - released + _size(decided) > self._byte_limit:
            raise TransactionRefused(DecisionsFull(self._byte_limit))

    def remember(self, decided: Decided) -> list[int]:
        """Remember a decision; return the batches of its query that it displaces."""
        displaced = self._displaced_by(decided)
        for old in displaced:
            self._drop(old)
        remembered = decided._replace(commits=(), ends=_topics_only(decided.ends))
        self._queries.setdefault(decided.query_id, {})[decided.batch_id] = remembered
        self._byte_count += _size(decided)
        self._here.update((decided.branches[at], (decided.query_id, decided.batch_id)) for at in decided.here)
        return [old.batch_id for old in displaced]

    def forget(self, query_id: str) -> list[int]:
        """Forget everything about a query; return the batches that were remembered."""
        kept = list(self._queries.get(query_id, {}).values())
        for old in kept:
            self._drop(old)
        return [old.batch_id for old in kept]

    def kept(self, query_id: str, batch_id: int) -> Decided:
        """Return a remembered decision as a record that commits nothing, for the checkpoint."""
        return self._queries[query_id][batch_id]

    def topics(self, query_id: str) -> frozenset[str]:
        """Return the topics that the remembered decisions of a query have written to on this broker."""
        kept = self._queries.get(query_id, {}).values()
        return frozenset(topic for decided in kept for topic, _ in decided.ends)

    def committed_here(self, key: Xid) -> bool:
        """Return whether a remembered decision committed this branch on this broker."""
        return key in self._here

    def refuse_decided(self, key: Xid) -> None:
        """Check that no remembered decision has committed this branch here.

        Raises:
            TransactionRefused: Names the batch.
        """
        partition_key = self._here.get(key)
        if partition_key is not None:
            raise TransactionRefused(AlreadyDecided(key, *partition_key))

    def _displaced_by(self, decided: Decided) -> list[Decided]:
        kept = self._queries.get(decided.query_id, {})
        staying = sorted({*kept, decided.batch_id})[-KEPT_PER_QUERY:]
        return [old for batch_id, old in kept.items() if batch_id not in staying or batch_id == decided.batch_id]

    def _drop(self, old: Decided) -> None:
        kept = self._queries[old.query_id]
        del kept[old.batch_id]
        if not kept:
            del self._queries[old.query_id]
        self._byte_count -= _size(old)
        for at in old.here:
            self._here.pop(old.branches[at], None)


def _topics_only(ends: Ends) -> Ends:
    return {(topic, NO_PARTITION): 0 for topic, _ in ends}


def _size(decided: Decided) -> int:
    return len(decided.query_id) + len(decided.contents or "") + _key_bytes(decided.branches)


def _key_bytes(keys: Iterable[Xid]) -> int:
    return sum(len(key.global_id) * 2 + len(key.branch) * 2 + len(key.unique) + 16 for key in keys)


QUERIES_MAX: Final = 10_000
"""Limit on ended queries that are remembered; older ones have no running tasks."""


class EndedQueries:
    """The queries that have ended since the broker's start: their writer has finished or given up.

    A task that the writer no longer waits for may still send PREPARE. No decision about this query will follow, so its
    branch would stay prepared forever. Branches of such a query (recognized by their unique qualifier) can therefore be
    neither begun nor prepared. A restart rolls back open branches, so ended queries need not be stored.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def note(self, query_id: str) -> None:
        self._names.pop(query_id, None)
        self._names[query_id] = None
        if len(self._names) > QUERIES_MAX:
            del self._names[next(iter(self._names))]

    def refuse(self, key: TransactionId) -> None:
        """Refuse the branches of ended queries.

        Raises:
            TransactionRefused: The query has ended.
        """
        if isinstance(key, Xid) and key.unique in self._names:
            raise TransactionRefused(QueryOver(key))
