"""Asking for a decision: who may be decided, what is recorded, what the caller learns.

Source: docs/adr/0007; see ``decisions`` for what a decision is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from metaq.model import TransactionId, Xid
from metaq_broker.engine.outcomes import Refusal
from metaq_broker.transactions.decisions import Decision, Decisions
from metaq_broker.transactions.ending import Ending
from metaq_broker.transactions.group_sync import GroupSync
from metaq_broker.transactions.heuristics import Heuristics
from metaq_broker.transactions.journal import JournalFailed
from metaq_broker.transactions.open_transactions import OpenTransactions
from metaq_broker.transactions.outcomes import (
    DecisionUnknown,
    NotAnXid,
    NotReadyToDecide,
    Outcome,
    OwnBranchesUnknown,
    TransactionRefused,
)
from metaq_broker.transactions.records import Decided
from metaq_broker.transactions.state import Event, State


class Question(NamedTuple):
    """Whether batch ``batch_id`` consists of ``branches``, those at the positions ``own`` being this broker's."""

    query_id: str
    batch_id: int
    branches: Sequence[TransactionId]
    own: Sequence[int] = ()
    contents: str | None = None


Told = Callable[[Decision | Refusal], None]
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

    def decide(self, asked: Question, done: Told) -> None:
        """Record that a batch consists of the branches, or find what was recorded for it; see the manager's ``decide``.

        Raises:
            TransactionRefused: Nothing was recorded, and ``done`` will not be called.
        """
        decision = self._decisions.recorded(asked.query_id, asked.batch_id) or self._record(asked)

        def durable(failure: JournalFailed | None) -> None:
            done(decision if failure is None else DecisionUnknown(asked.query_id, asked.batch_id, str(failure)))

        self._sync.when_durable(durable)

    def _record(self, asked: Question) -> Decision:
        query_id, batch_id, keys = asked.query_id, asked.batch_id, tuple(_xids(asked.branches))
        unready = tuple(key for key in dict.fromkeys(keys) if not self._may_be_decided(key))
        if unready:
            raise TransactionRefused(NotReadyToDecide(query_id, batch_id, unready))
        missing = tuple(keys[position] for position in asked.own if not self._is_known(keys[position]))
        if missing:
            raise TransactionRefused(OwnBranchesUnknown(query_id, batch_id, missing))
        found = {key: known for key in keys if (known := self._transactions.find(key, None)) is not None}
        here = tuple(position for position, key in enumerate(keys) if key in found)
        self._ending.decide(Decided(query_id, batch_id, keys, here, (), {}, asked.contents), list(found.values()))
        return Decision(batch_id, keys, asked.contents)

    def _is_known(self, key: Xid) -> bool:
        """Whether the branch is prepared here, or its commit is remembered."""
        if self._transactions.find(key, None) is not None or self._decisions.committed_here(key):
            return True
        return self._heuristics.outcome(key) is Outcome.COMMITTED

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
            raise TransactionRefused(NotAnXid(branch))
        keys.append(branch)
    return keys
