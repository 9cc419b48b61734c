"""Asking for a decision: who may be decided, what is recorded, what the caller learns.

Source: docs/adr/0007; see ``decisions`` for what a decision is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metaq.model import TransactionId, Xid
from metaq_broker.tx.decisions import Decision, Decisions
from metaq_broker.tx.ending import Ending
from metaq_broker.tx.group_sync import GroupSync
from metaq_broker.tx.heuristics import Heuristics, Outcome
from metaq_broker.tx.journal import JournalFailed
from metaq_broker.tx.open_transactions import OpenTransactions
from metaq_broker.tx.records import Decided
from metaq_broker.tx.refusals import TransactionRefused, decision_unknown, not_an_xid, not_ready_to_decide
from metaq_broker.tx.state import Event, State

Told = Callable[[Decision | TransactionRefused], None]
"""Called exactly once with what is decided for the batch, now or before."""


class Deciding:
    """Takes decisions about the branches that it finds in ``transactions``."""

    def __init__(
        self,
        decisions: Decisions,
        heuristics: Heuristics,
        transactions: OpenTransactions,
        ending: Ending,
        sync: GroupSync,
    ) -> None:
        self._decisions = decisions
        self._heuristics = heuristics
        self._transactions = transactions
        self._ending = ending
        self._sync = sync

    def decide(self, query_id: str, batch_id: int, branches: Sequence[TransactionId], done: Told) -> None:
        """Record that a batch consists of ``branches``, or find what was recorded for it; see the manager's ``decide``.

        Raises:
            TransactionRefused: Nothing was recorded, and ``done`` will not be called.
        """
        decision = self._decisions.recorded(query_id, batch_id) or self._record(query_id, batch_id, branches)

        def durable(failure: JournalFailed | None) -> None:
            done(decision if failure is None else decision_unknown(query_id, batch_id, str(failure)))

        self._sync.when_durable(durable)

    def _record(self, query_id: str, batch_id: int, branches: Sequence[TransactionId]) -> Decision:
        keys = tuple(_xids(branches))
        unready = [str(key) for key in dict.fromkeys(keys) if not self._may_be_decided(key)]
        if unready:
            raise not_ready_to_decide(batch_id, query_id, unready)
        found = {key: known for key in keys if (known := self._transactions.find(key, None)) is not None}
        here = tuple(position for position, key in enumerate(keys) if key in found)
        self._ending.decide(Decided(query_id, batch_id, keys, here, (), {}), list(found.values()))
        return Decision(batch_id, keys)

    def _may_be_decided(self, key: Xid) -> bool:
        if self._heuristics.outcome(key) not in (None, Outcome.COMMITTED):
            return False
        transaction = self._transactions.find(key, None)
        try:
            return transaction is None or transaction.after(Event.DECIDE) is State.COMMITTING
        except TransactionRefused:
            return False


def _xids(branches: Sequence[TransactionId]) -> list[Xid]:
    keys = []
    for branch in branches:
        if not isinstance(branch, Xid):
            raise not_an_xid(branch)
        keys.append(branch)
    return keys
