"""Who may see which transaction, and how many there may be.

Local transactions are found by (connection, key): a key means nothing on another connection. XA transactions are found
by their key alone, whoever asks.

Source: docs/transactions.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from metaq.model import TransactionId, Xid
from metaq_broker.transactions.outcomes import TooManyTransactions, TransactionRefused
from metaq_broker.transactions.transaction import Transaction


class OpenTransactions:
    """The transactions that have begun and not ended. ``open_max`` is how many there may be."""

    def __init__(self, open_max: int) -> None:
        self._open_max = open_max
        self._xa: dict[Xid, Transaction] = {}
        self._local: dict[object, dict[TransactionId, Transaction]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Transaction]:
        yield from self._xa.values()
        for transactions in self._local.values():
            yield from transactions.values()

    def check_capacity(self) -> None:
        """Let pass one more transaction.

        Raises:
            TransactionRefused: There are as many as may be.
        """
        if self._count >= self._open_max:
            raise TransactionRefused(TooManyTransactions(self._open_max))

    def find(self, key: TransactionId, connection: object | None) -> Transaction | None:
        """Return the transaction that ``connection`` means by ``key``."""
        if isinstance(key, Xid):
            return self._xa.get(key)
        return self._local.get(connection, {}).get(key)

    def add(self, transaction: Transaction) -> None:
        """Let a transaction be found."""
        if isinstance(transaction.key, Xid):
            self._xa[transaction.key] = transaction
        else:
            self._local.setdefault(transaction.owner, {})[transaction.key] = transaction
        self._count += 1

    def remove(self, transaction: Transaction) -> None:
        """Let an ended transaction not be found any more; nothing happens if it is not."""
        if self.find(transaction.key, transaction.owner) is not transaction:
            return
        if isinstance(transaction.key, Xid):
            del self._xa[transaction.key]
        else:
            mine = self._local[transaction.owner]
            del mine[transaction.key]
            if not mine:
                del self._local[transaction.owner]
        self._count -= 1

    def of(self, connection: object) -> list[Transaction]:
        """Return the local transactions of a connection."""
        return list(self._local.get(connection, {}).values())

    def xa(self) -> Iterator[Transaction]:
        """Yield the XA transactions, oldest first."""
        yield from self._xa.values()
