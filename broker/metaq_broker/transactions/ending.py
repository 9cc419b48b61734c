"""How a transaction ends: prepare, commit, rollback, an operator's hand, a decision.

Every step has the same shape: ask the transition table, write the record, change the state, and answer when the record
is durable. If the journal refuses the record, nothing has changed. If it fails while the record is on its way to the
disk, the outcome is unknown until a restart: the transaction stays where it is, and everybody is told.

Methods raise ``TransactionRefused`` for what is refused at once, and then never call ``done``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metaq_broker.engine.outcomes import Refusal
from metaq_broker.transactions.applying import Applying, fail, settle
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
from metaq_broker.transactions.journal import JournalFailed
from metaq_broker.transactions.journal_writer import JournalWriter
from metaq_broker.transactions.outcomes import NoSpace, Outcome, OutcomeUnknown, TransactionRefused
from metaq_broker.transactions.records import Branch, Decided, Ends
from metaq_broker.transactions.state import Event, State
from metaq_broker.transactions.transaction import Transaction, xid_of

Voted = Callable[[PrepareVote | Refusal], None]
"""Called exactly once with what PREPARE answers."""


class Ending:
    """Carries out the steps that end transactions. ``ended`` is told of each that is over."""

    def __init__(
        self,
        writer: JournalWriter,
        sync: GroupSync,
        store: TransactionStore,
        call_later: CallLater,
        run_in_worker: RunInWorker,
        heuristics: Heuristics,
        counters: TransactionCounters,
        ended: Callable[[Transaction], None],
        check_space: SpaceCheck,
    ) -> None:
        self._writer = writer
        self._sync = sync
        self._store = store
        self._applying = Applying(writer, store, call_later, run_in_worker, self._applied)
        self._heuristics = heuristics
        self._counters = counters
        self._ended = ended
        self._space_check = check_space

    # ---- the client's steps

    def prepare(self, transaction: Transaction, now_ms: int, done: Voted) -> None:
        """Make a transaction survive everything; one without messages ends instead."""
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

    def _prepare_durable(self, transaction: Transaction, failure: JournalFailed | None, done: Voted) -> None:
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
            self._apply_when_durable([transaction], self._applying.apply)
        else:
            self._applied(transaction)

    def roll_back(self, transaction: Transaction, done: Done) -> None:
        """Give a transaction up; of a prepared one ``done`` is called when that is durable."""
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
        """End a prepared transaction by hand; ``done`` as for a commit or a rollback."""
        transaction.after(Event.OPERATOR)
        committing = outcome is Outcome.COMMITTED
        self._writer.end_by_operator(transaction, outcome, self._ends([transaction]) if committing else {})
        self._heuristics.remember(xid_of(transaction), outcome)
        if committing:
            transaction.state = transaction.after(Event.COMMIT_TWO_PHASE)
            transaction.waiting.append(done)
            self._apply_when_durable([transaction], self._applying.apply)
        else:
            self._roll_back_when_durable(transaction, done)

    def decide(self, decided: Decided, known: Sequence[Transaction]) -> None:
        """Commit those of ``known``, the branches of a batch on this broker, that nobody has begun to commit.

        ``decided`` is the record without its commits. Nobody is told here: see ``GroupSync.when_durable``.
        """
        chosen = [transaction for transaction in known if transaction.state is State.PREPARED]
        commits = tuple(Branch(each.serial, each.chunks, xid_of(each)) for each in chosen)
        self._writer.decide(decided._replace(commits=commits, ends=self._ends(chosen)), chosen)
        for transaction in chosen:
            transaction.state = transaction.after(Event.DECIDE)
        self._apply_when_durable(chosen, self._applying.apply_apart)

    def resume(self, transaction: Transaction, units: Sequence[Sequence[Unit]]) -> None:
        """Go on with a commit that a crash interrupted: ``units`` are still missing in the partitions."""
        self._applying.append(transaction, units)

    def stop(self) -> None:
        """Carry nothing further: the journal is about to close."""
        self._applying.stop()

    # ---- what follows

    def _check_space(self, transaction: Transaction) -> None:
        reason = self._space_check(transaction.contents) if transaction.messages else None
        if reason is not None:
            raise TransactionRefused(NoSpace(transaction.key, reason))

    def _ends(self, transactions: Sequence[Transaction]) -> Ends:
        partition_keys = {partition_key for transaction in transactions for partition_key in transaction.contents}
        return {partition_key: self._store.log_end(*partition_key) for partition_key in partition_keys}

    def _apply_when_durable(
        self, transactions: Sequence[Transaction], apply: Callable[[Sequence[Transaction]], None]
    ) -> None:
        def durable(failure: JournalFailed | None) -> None:
            if failure is None:
                apply(transactions)
                return
            for transaction in transactions:
                fail(transaction, OutcomeUnknown(transaction.key, str(failure)))

        self._sync.when_durable(durable)

    def _applied(self, transaction: Transaction) -> None:
        transaction.state = transaction.after(Event.APPLIED)
        self._counters.tx_commit += 1
        self._ended(transaction)
        settle(transaction, None)

    def _roll_back_when_durable(self, transaction: Transaction, done: Done) -> None:
        transaction.state = transaction.after(Event.ROLLBACK)
        transaction.waiting.append(done)

        def durable(failure: JournalFailed | None) -> None:
            if failure is not None:
                fail(transaction, OutcomeUnknown(transaction.key, str(failure)))
                return
            transaction.state = transaction.after(Event.ROLLBACK_DURABLE)
            self._counters.tx_rollback += 1
            self._ended(transaction)
            settle(transaction, None)

        self._sync.when_durable(durable)

    def _over(self, transaction: Transaction) -> None:
        transaction.disarm()
        transaction.drop_buffer()
        transaction.state = State.ENDED
        self._writer.release(transaction)
        self._ended(transaction)


def _join(transaction: Transaction, done: Done) -> None:
    """Let ``done`` wait with those who asked for the same before."""
    if transaction.failure is not None:
        raise TransactionRefused(transaction.failure)
    transaction.waiting.append(done)
