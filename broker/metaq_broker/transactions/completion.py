"""How a transaction is completed: by its client (prepare, commit, rollback), by an operator, or by a decision.

Every step has the same parts: ask the transition table, write the record, change the state, and answer when the record
is durable. If the journal refuses the record, nothing has changed. If the journal fails before the record is durable,
the outcome is unknown until a restart: the transaction keeps its state, and all waiting callers get that answer.

Methods raise ``TransactionRefused`` for an immediate refusal, and then never call ``done``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from metaq.model import TransactionId, Xid
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.transactions.applier import Applier, Lane, fail, settle
from metaq_broker.transactions.decisions import Decision, Decisions
from metaq_broker.transactions.group_sync import GroupSync
from metaq_broker.transactions.heuristics import Heuristics
from metaq_broker.transactions.interfaces import (
    CallLater,
    Done,
    PrepareVote,
    RunInWorker,
    SpaceCheck,
    TransactionCounters,
    TransactionStore,
    Unit,
)
from metaq_broker.transactions.journal_writer import JournalWriter
from metaq_broker.transactions.outcomes import (
    DecisionUnknown,
    NoSpace,
    NotAnXid,
    NotReadyToDecide,
    Outcome,
    OutcomeUnknown,
    OwnBranchesUnknown,
    TransactionRefused,
)
from metaq_broker.transactions.records import Branch, Decided, Ends
from metaq_broker.transactions.state import Event, State
from metaq_broker.transactions.transaction import OpenTransactions, Transaction, xid_of

Voted = Callable[[PrepareVote | Refusal], None]
"""Called exactly once with the vote of PREPARE, or its refusal."""


class Proposal(NamedTuple):
    """A proposal that batch ``batch_id`` consists of ``branches``; the positions ``own`` are this broker's branches."""

    query_id: str
    batch_id: int
    branches: Sequence[TransactionId]
    own: Sequence[int] = ()
    contents: str | None = None


Answered = Callable[[Decision | Refusal], None]
"""Called exactly once with the decision for the batch, made now or earlier, or with the refusal."""


class Completion:
    def __init__(
        self,
        writer: JournalWriter,
        sync: GroupSync,
        store: TransactionStore,
        call_later: CallLater,
        run_in_worker: RunInWorker,
        transactions: OpenTransactions,
        decisions: Decisions,
        heuristics: Heuristics,
        counters: TransactionCounters,
        check_space: SpaceCheck,
    ) -> None:
        self._writer = writer
        self._sync = sync
        self._store = store
        self._applier = Applier(writer, store, call_later, run_in_worker, self._applied)
        self._transactions = transactions
        self._decisions = decisions
        self._heuristics = heuristics
        self._counters = counters
        self._space_check = check_space

    # ---- the client's steps

    def prepare(self, transaction: Transaction, now_ms: int, done: Voted) -> None:
        """Make a transaction durable. A transaction without messages ends here: it is read-only."""
        state = transaction.after(Event.PREPARE if transaction.messages else Event.PREPARE_EMPTY)
        if state is State.ENDED:
            self._over(transaction)
            done(PrepareVote.READ_ONLY)
            return
        self._check_space(transaction)
        self._writer.prepare(transaction, now_ms)
        transaction.state = state
        transaction.disarm()
        self._sync.when_durable(lambda failure: self._prepare_durable(transaction, failure, done))

    def _prepare_durable(self, transaction: Transaction, failure: Exception | None, done: Voted) -> None:
        if failure is not None:
            refusal = OutcomeUnknown(transaction.key, str(failure))
            fail(transaction, refusal)
            done(refusal)
            return
        transaction.state = transaction.after(Event.PREPARE_DURABLE)
        done(PrepareVote.OK)

    def commit(self, transaction: Transaction, event: Event, done: Done) -> None:
        """Commit, in one phase or two as ``event`` says; ``done`` when the messages are durable and readable."""
        state = transaction.after(event)
        if transaction.state is state:
            _join(transaction, done)
            return
        if transaction.state is State.OPEN:
            self._check_space(transaction)
        if transaction.messages:
            self._writer.commit(transaction, self._ends([transaction]))
        transaction.state = state
        transaction.disarm()
        transaction.waiting.append(done)
        if transaction.messages:
            self._apply_when_durable([transaction], self._applier.lane)
        else:
            self._applied(transaction)

    def roll_back(self, transaction: Transaction, done: Done) -> None:
        """Roll a transaction back. For a prepared one, ``done`` is called when the rollback is durable."""
        state = transaction.after(Event.ROLLBACK)
        if state is State.ENDED:
            self._counters.tx_rollback += 1
            self._over(transaction)
            done(None)
        elif transaction.state is state:
            _join(transaction, done)
        else:
            self._writer.roll_back(transaction)
            self._roll_back_when_durable(transaction, done)

    def lose(self, transaction: Transaction, event: Event) -> bool:
        """Roll back what ``event`` (expired, connection lost) ends; return whether it did."""
        if transaction.after(event) is not State.ENDED:
            return False
        self._counters.tx_rollback += 1
        self._over(transaction)
        return True

    # ---- operators and decisions

    def by_operator(self, transaction: Transaction, outcome: Outcome, done: Done) -> None:
        """Complete a prepared transaction manually. ``done`` is called as for a commit or a rollback."""
        transaction.after(Event.OPERATOR)
        committing = outcome is Outcome.COMMITTED
        self._writer.end_by_operator(transaction, outcome, self._ends([transaction]) if committing else {})
        self._heuristics.remember(xid_of(transaction), outcome)
        if committing:
            transaction.state = transaction.after(Event.COMMIT_TWO_PHASE)
            transaction.waiting.append(done)
            self._apply_when_durable([transaction], self._applier.lane)
        else:
            self._roll_back_when_durable(transaction, done)

    def decide(self, proposal: Proposal, done: Answered) -> None:
        """Record that a batch consists of branches, or return the recorded decision; see ``TransactionManager.decide``.

        Raises:
            TransactionRefused: Nothing was recorded, and ``done`` will not be called.
        """
        query_id, batch_id = proposal.query_id, proposal.batch_id
        decision = self._decisions.recorded(query_id, batch_id) or self._record(proposal)

        def durable(failure: Exception | None) -> None:
            done(decision if failure is None else DecisionUnknown(query_id, batch_id, str(failure)))

        self._sync.when_durable(durable)

    def _record(self, proposal: Proposal) -> Decision:
        query_id, batch_id, keys = proposal.query_id, proposal.batch_id, tuple(_xids(proposal.branches))
        unready = tuple(key for key in dict.fromkeys(keys) if not self._may_be_decided(key))
        if unready:
            raise TransactionRefused(NotReadyToDecide(query_id, batch_id, unready))
        missing = tuple(keys[position] for position in proposal.own if not self._is_known(keys[position]))
        if missing:
            raise TransactionRefused(OwnBranchesUnknown(query_id, batch_id, missing))
        found = {key: known for key in keys if (known := self._transactions.find(key, None)) is not None}
        here = tuple(position for position, key in enumerate(keys) if key in found)
        # Do not change branches whose commit has begun.
        chosen = [transaction for transaction in found.values() if transaction.state is State.PREPARED]
        commits = tuple(Branch(each.serial, each.chunks, xid_of(each)) for each in chosen)
        ends = self._ends(chosen)
        self._writer.decide(Decided(query_id, batch_id, keys, here, commits, ends, proposal.contents), chosen)
        for transaction in chosen:
            transaction.state = transaction.after(Event.DECIDE)
        self._apply_when_durable(chosen, Lane(self._applier))
        return Decision(batch_id, keys, proposal.contents)

    def _is_known(self, key: Xid) -> bool:
        """Return whether the branch is prepared here, or its commit is remembered."""
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

    def resume(self, transaction: Transaction, units: Sequence[Sequence[Unit]]) -> None:
        """Resume a commit that a crash interrupted: ``units`` are still missing in the partitions."""
        self._applier.resume(transaction, units)

    def stalled(self) -> list[Transaction]:
        """Return the committed transactions whose messages a partition cannot store now."""
        return self._applier.stalled.transactions()

    def stop(self) -> None:
        self._applier.stop()

    # ---- what follows

    def _check_space(self, transaction: Transaction) -> None:
        reason = self._space_check(transaction.contents) if transaction.messages else None
        if reason is not None:
            raise TransactionRefused(NoSpace(transaction.key, reason))

    def _ends(self, transactions: Sequence[Transaction]) -> Ends:
        log_end = self._store.log_end
        return {key: log_end(*key) for transaction in transactions for key in transaction.contents}

    def _apply_when_durable(self, transactions: Sequence[Transaction], lane: Lane) -> None:
        def durable(failure: Exception | None) -> None:
            if failure is None:
                lane.add(transactions)
                return
            for transaction in transactions:
                fail(transaction, OutcomeUnknown(transaction.key, str(failure)))

        self._sync.when_durable(durable)

    def _applied(self, transaction: Transaction) -> None:
        transaction.state = transaction.after(Event.APPLIED)
        self._counters.tx_commit += 1
        self._transactions.remove(transaction)
        settle(transaction, None)

    def _roll_back_when_durable(self, transaction: Transaction, done: Done) -> None:
        transaction.state = transaction.after(Event.ROLLBACK)
        transaction.waiting.append(done)

        def durable(failure: Exception | None) -> None:
            if failure is not None:
                fail(transaction, OutcomeUnknown(transaction.key, str(failure)))
                return
            transaction.state = transaction.after(Event.ROLLBACK_DURABLE)
            self._counters.tx_rollback += 1
            self._transactions.remove(transaction)
            settle(transaction, None)

        self._sync.when_durable(durable)

    def _over(self, transaction: Transaction) -> None:
        transaction.disarm()
        transaction.drop_buffer()
        transaction.state = State.ENDED
        self._writer.release(transaction)
        self._transactions.remove(transaction)


def _join(transaction: Transaction, done: Done) -> None:
    """Call ``done`` together with the callbacks of earlier requests for the same step."""
    if transaction.failure is not None:
        raise TransactionRefused(transaction.failure)
    transaction.waiting.append(done)


def _xids(branches: Sequence[TransactionId]) -> list[Xid]:
    keys = []
    for branch in branches:
        if not isinstance(branch, Xid):
            raise TransactionRefused(NotAnXid(branch))
        keys.append(branch)
    return keys
