"""From a durable commit record to readable messages.

The order that makes a commit whole: first the commit record is durable, then the messages are appended to the
partitions, one contiguous unit each, then they are durable there, then the journal notes that it need not remember, and
the committer hears "done". A crash before the first step leaves nothing, a crash after it leaves a commit that recovery
finishes.

If a partition does not take its unit (its disk failed), the transaction stays committed: whoever asks is told so, and a
restart of the broker, with the disk mended, makes it readable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from metaq.errors import MetaqError
from metaq_broker.tx.journal import JournalDamaged
from metaq_broker.tx.journal_writer import JournalWriter
from metaq_broker.tx.refusals import TransactionRefused, committed_not_stored
from metaq_broker.tx.seams import CallLater, TransactionStore, Unit
from metaq_broker.tx.transaction import Transaction

_log = logging.getLogger(__name__)


class Applying:
    """Puts committed transactions into the partitions. ``applied`` is told of each that is readable."""

    def __init__(
        self,
        writer: JournalWriter,
        store: TransactionStore,
        call_later: CallLater,
        applied: Callable[[Transaction], None],
    ) -> None:
        self._writer = writer
        self._store = store
        self._call_later = call_later
        self._applied = applied
        self._stopped = False

    def stop(self) -> None:
        """Append and note nothing more: the journal is about to close. The next start finishes what is left."""
        self._stopped = True

    def apply(self, transactions: Sequence[Transaction]) -> None:
        """Append the messages of transactions whose commit is durable, in order.

        One transaction a turn of the loop: a batch of many branches must not keep everybody else waiting.
        """
        if not transactions or self._stopped:
            return
        self._apply_one(transactions[0])
        if len(transactions) > 1:
            self._call_later(0.0, lambda: self.apply(transactions[1:]))

    def _apply_one(self, transaction: Transaction) -> None:
        try:
            units = self._writer.units(transaction)
        except (JournalDamaged, OSError) as error:
            self._finished(transaction, error)
            return
        self.append(transaction, units)

    def append(self, transaction: Transaction, units: Sequence[Unit]) -> None:
        """Append those units of a committed transaction that are not in the partitions yet."""
        if not units:
            self._finished(transaction, None)
            return
        try:
            self._store.append(units, lambda error: self._finished(transaction, error))
        except (MetaqError, OSError) as error:
            self._finished(transaction, error)

    def _finished(self, transaction: Transaction, error: Exception | None) -> None:
        if self._stopped:
            return
        if error is not None:
            _log.error("transaction %s is committed, but not readable: %s", transaction.key, error)
            fail(transaction, committed_not_stored(transaction.key, str(error)))
            return
        self._writer.applied(transaction)
        self._applied(transaction)


def settle(transaction: Transaction, refusal: TransactionRefused | None) -> None:
    """Tell everybody who waits for the end of a transaction."""
    waiting, transaction.waiting = transaction.waiting, []
    for done in waiting:
        done(refusal)


def fail(transaction: Transaction, refusal: TransactionRefused) -> None:
    """Note that a transaction cannot come to its end before a restart, and tell everybody who waits."""
    transaction.failure = refusal
    settle(transaction, refusal)
