"""Queries that are over: their writer has finished or given up, and nothing that comes late may stay behind.

A task that the writer no longer waits for may still be on its way to PREPARE. What it prepares would lie there for
ever, because nobody decides about this query again. So branches of such a query (by their unique qualifier) can be
neither begun nor prepared. A restart rolls back what is open, so nothing need be remembered longer than the broker
runs.

Source: docs/transactions.md, "Exactly once".
"""

from __future__ import annotations

from typing import Final

from metaq.model import TransactionId, Xid
from metaq_broker.transactions.refusals import query_over

QUERIES_MAX: Final = 10_000
"""How many are remembered, the newest; an older one has no task under way any more."""


class EndedQueries:
    """The queries that have ended since the start."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def note(self, query_id: str) -> None:
        """Remember that a query is over."""
        self._names.pop(query_id, None)
        self._names[query_id] = None
        if len(self._names) > QUERIES_MAX:
            del self._names[next(iter(self._names))]

    def refuse(self, key: TransactionId) -> None:
        """Let pass the branches of other queries.

        Raises:
            TransactionRefused: The query is over.
        """
        if isinstance(key, Xid) and key.unique in self._names:
            raise query_over(key)
