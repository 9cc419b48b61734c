"""After a restart: what recovery found is adopted, and interrupted commits are finished."""

from __future__ import annotations

from metaq.model import Xid
from metaq_broker.transactions.completion import Completion
from metaq_broker.transactions.heuristics import Heuristics
from metaq_broker.transactions.interfaces import TransactionStore
from metaq_broker.transactions.journal import Journal
from metaq_broker.transactions.journal_writer import JournalWriter
from metaq_broker.transactions.recovery import Recovered, Replay, lowered_ends, missing_units
from metaq_broker.transactions.state import State
from metaq_broker.transactions.transaction import OpenTransactions, Transaction


def adopt_memories(replay: Replay, heuristics: Heuristics, writer: JournalWriter) -> None:
    """Remember the heuristic outcomes and the decisions again."""
    for key, (location, outcome) in replay.outcomes.items():
        heuristics.remember(key, outcome)
        writer.adopt_outcome(key, outcome, location)
    for decisions in replay.decisions.values():
        for location, decided in decisions:
            writer.adopt_decision(decided, location)


def adopt_transactions(
    recovered: list[Recovered], transactions: OpenTransactions, writer: JournalWriter
) -> list[Transaction]:
    """Register the transactions that outlived the restart; return those whose commit has to be finished."""
    for each in recovered:
        writer.adopt(each)
        if isinstance(each.transaction.key, Xid):  # a local one has lost the connection that could refer to it
            transactions.add(each.transaction)
    return [each.transaction for each in recovered if each.transaction.state is State.COMMITTING]


def finish_commits(
    committed: list[Transaction],
    store: TransactionStore,
    writer: JournalWriter,
    journal: Journal,
    completion: Completion,
) -> None:
    """Append the messages of interrupted commits that the partitions do not have yet.

    Raises:
        JournalDamaged, OSError: Their messages cannot be read.
        JournalFailed, TransactionRefused: The journal cannot be written.
    """
    for transaction in committed:
        ends = lowered_ends(transaction, store)
        if ends != transaction.ends:
            writer.commit(transaction, ends)
    journal.sync_now()
    for transaction in committed:
        missing = missing_units(writer.units(transaction), transaction.ends, store)
        completion.resume(transaction, missing)
