"""Transactions are not wired yet: every command that needs them is answered with 503."""

from __future__ import annotations

from typing import Final

from metaq.wire.text.commands import Decide, Put, PutBatch, Result, Transaction
from metaq.wire.text.encode import encode
from metaq_broker.frontend.replies import ReplyQueue
from metaq_broker.outcomes import UNAVAILABLE


class TransactionCommands:
    """Answers transaction commands."""

    def transaction(self, connection: object, command: Transaction, replies: ReplyQueue) -> None:
        """Carry out a transaction command."""
        self._refuse(command.opaque, replies)

    def put(self, connection: object, command: Put, replies: ReplyQueue) -> None:
        """Put inside a transaction."""
        self._refuse(command.opaque, replies)

    def put_batch(self, connection: object, command: PutBatch, replies: ReplyQueue) -> None:
        """Put a batch inside a transaction."""
        self._refuse(command.opaque, replies)

    def decide(self, command: Decide, replies: ReplyQueue) -> None:
        """Record a decision."""
        self._refuse(command.opaque, replies)

    def connection_lost(self, connection: object) -> None:
        """Roll back what the connection began."""

    def _refuse(self, opaque: int, replies: ReplyQueue) -> None:
        replies.add(encode(Result(UNAVAILABLE, "transactions are not available", opaque)))


NO_TRANSACTIONS: Final = TransactionCommands()
