"""Heuristic outcomes: prepared transactions that an operator ended by hand, because their coordinator did not.

The coordinator must be told what was done in its absence: until it says FORGET, every COMMIT and ROLLBACK of the key
gets the outcome as an XA error, and RECOVER lists the key.

Source: docs/transactions.md (heuristic outcomes).
"""

from __future__ import annotations

from metaq.model import TransactionId, Xid
from metaq_broker.transactions.outcomes import EndedByOperator, Outcome, TransactionRefused


class Heuristics:
    """The outcomes that no coordinator has acknowledged yet."""

    def __init__(self) -> None:
        self._outcomes: dict[Xid, Outcome] = {}

    def remember(self, key: Xid, outcome: Outcome) -> None:
        """Note what was done."""
        self._outcomes[key] = outcome

    def forget(self, key: Xid) -> bool:
        """Return whether there was something to forget."""
        return self._outcomes.pop(key, None) is not None

    def outcome(self, key: Xid) -> Outcome | None:
        """Return what was done, ``None`` if nothing was."""
        return self._outcomes.get(key)

    def refuse_ended(self, key: TransactionId) -> None:
        """Let pass what no operator has touched.

        Raises:
            TransactionRefused: Says what the operator did.
        """
        if isinstance(key, Xid) and (outcome := self._outcomes.get(key)) is not None:
            raise TransactionRefused(EndedByOperator(key, outcome))

    def keys(self) -> list[Xid]:
        """Return the keys in the order in which they were ended."""
        return list(self._outcomes)

    def items(self) -> list[tuple[Xid, Outcome]]:
        """Return keys and outcomes in the order in which they were ended."""
        return list(self._outcomes.items())
