"""An operator may complete a prepared transaction manually if its coordinator does not (a heuristic outcome).

The coordinator must learn the outcome: until it sends FORGET, every COMMIT and ROLLBACK of the key gets the outcome as
an XA error, and RECOVER lists the key.

Source: docs/transactions.md (heuristic outcomes).
"""

from __future__ import annotations

from metaq.model import TransactionId, Xid
from metaq_broker.transactions.outcomes import EndedByOperator, Outcome, TransactionRefused


class Heuristics:
    """Outcomes of manual completions that no coordinator has acknowledged yet."""

    def __init__(self) -> None:
        self._outcomes: dict[Xid, Outcome] = {}

    def remember(self, key: Xid, outcome: Outcome) -> None:
        self._outcomes[key] = outcome

    def forget(self, key: Xid) -> bool:
        """Forget an outcome; return whether there was one."""
        return self._outcomes.pop(key, None) is not None

    def outcome(self, key: Xid) -> Outcome | None:
        return self._outcomes.get(key)

    def refuse_ended(self, key: TransactionId) -> None:
        """Check that no operator has completed this branch.

        Raises:
            TransactionRefused: Says what the operator did.
        """
        if isinstance(key, Xid) and (outcome := self._outcomes.get(key)) is not None:
            raise TransactionRefused(EndedByOperator(key, outcome))

    def keys(self) -> list[Xid]:
        """Return the keys in the order in which their branches were ended."""
        return list(self._outcomes)

    def items(self) -> list[tuple[Xid, Outcome]]:
        """Return the keys with their outcomes, in the order in which the branches were ended."""
        return list(self._outcomes.items())
