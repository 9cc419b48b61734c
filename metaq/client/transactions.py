"""Transactions of a producer: local ones, and branches of XA transactions that several systems share.

All messages of a transaction go to one broker: the master of the first message's partition. Nothing is readable before
the commit.

Source: docs/transactions.md.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import put
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps, Vote
from metaq.client.records import Sent
from metaq.discovery.base import Directory
from metaq.errors import ExtensionMissing, MetaqError, TransactionNotFound
from metaq.model import Address, Message, Partition, TransactionId, Xid
from metaq.net.forks import forked_text, notify_after_fork

Choose = Callable[[str, Partition | None, bytes | str | None, int | None], tuple[Partition, Address]]
"""(topic, partition or ``None``, key or ``None``, broker or ``None`` for any) -> the partition and its master."""

Encode = Callable[[bytes | str, str | None], Message]
"""Converts a payload and an attribute into a message."""


class _Open(ABC):
    """A transaction that begins with its first message, over a connection of its own.

    Steps from several threads run one after the other. In a forked child the transaction counts as ended: the parent
    continues it over the same connection.
    """

    def __init__(self, choose: Choose, encode: Encode, pool: SessionPool, timeout_s: int) -> None:
        if not isinstance(timeout_s, int) or timeout_s < 0:
            raise ValueError(f"timeout {timeout_s!r}: expected whole seconds, 0 or more")
        self._choose, self._encode, self._pool, self._timeout_s = choose, encode, pool, timeout_s
        self._stack = ExitStack()
        self._session: Session | None = None
        self._steps: TransactionSteps | None = None
        self._broker: int | None = None
        self._ended, self._ended_text = False, "the transaction has ended"
        self._step = threading.Lock()
        notify_after_fork(self._forked)

    def _forked(self) -> None:
        self._ended, self._ended_text = True, forked_text("the transaction")
        self._step = threading.Lock()

    def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        attribute: str | None = None,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> Sent:
        """Add a message. Its ``offset`` is -1: it has none before the commit.

        Raises:
            ValueError: The transaction has ended, or ``partition`` is at another broker than the first message.
            TopicNotFound: No broker, or not the transaction's, accepts the topic.
            BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError: The message may not have been stored. Roll
                the transaction back.
        """
        message = self._encode(data, attribute)
        with self._step:
            self._require_open()
            where, address = self._choose(topic, partition, key, self._broker)
            session, transaction = self._begun(where, address)
            receipt = put(session, topic, where.index, message, transaction)
        return Sent(topic=topic, partition=where, offset=receipt.offset, message_id=receipt.message_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self._leave(kind)

    @abstractmethod
    def _leave(self, kind: type[BaseException] | None) -> None:
        """End the transaction when its block is left by exception type ``kind``, or normally."""

    def _require_open(self) -> None:
        if self._ended:
            raise ValueError(self._ended_text)

    def _begun(self, where: Partition, address: Address) -> tuple[Session, TransactionId]:
        if self._session is None or self._steps is None:
            self._session = self._stack.enter_context(self._pool.lease(address))
            self._steps = TransactionSteps(self._session)
            self._steps.begin(self._transaction(self._steps), self._timeout_s)
            self._broker = where.broker_id
        return self._session, self._transaction(self._steps)

    @abstractmethod
    def _transaction(self, steps: TransactionSteps) -> TransactionId:
        """Return the name of the transaction at the broker."""

    def _finish(self, step: Callable[[TransactionSteps], object]) -> None:
        """Run the last step, if the transaction has begun, and return the connection."""
        with self._step:
            self._require_open()
            self._ended = True
            with self._stack:
                self._pool.check_open()
                if self._steps is not None:
                    step(self._steps)


class LocalTransaction(_Open):
    """A transaction of one program: leaving the ``with`` block commits it, an exception rolls it back.

    If the connection breaks, the broker rolls it back; if it breaks during the commit, the outcome is unknown.
    """

    _id: TransactionId | None = None

    @property
    def id(self) -> TransactionId | None:
        """The transaction id at the broker; ``None`` before the first message."""
        return self._id

    def _transaction(self, steps: TransactionSteps) -> TransactionId:
        if self._id is None:
            self._id = steps.local_id()
        return self._id

    def commit(self) -> None:
        """Make the messages readable.

        Raises:
            ValueError: The transaction has ended.
            TransactionError: The broker does not know the transaction any more: it exceeded its timeout.
            ConnectionFailed, DeadlineExceeded: It is unknown whether the transaction was committed.
        """
        self._finish(lambda steps: steps.commit(self._transaction(steps)))

    def rollback(self) -> None:
        """Drop the messages. Raises as ``commit``."""
        self._finish(lambda steps: steps.rollback(self._transaction(steps)))

    def _leave(self, kind: type[BaseException] | None) -> None:
        if kind is None:
            self.commit()
            return
        with suppress(MetaqError, ValueError):  # the broker rolls back by itself; the first error is raised
            self.rollback()


class XaBranch(_Open):
    """One branch of an XA transaction. Call ``prepare`` inside the ``with`` block; without it, leaving rolls back.

    A prepared branch outlives this program: ``MetaQ.commit`` and ``MetaQ.rollback`` end it, from anywhere.
    """

    def __init__(self, xid: Xid, choose: Choose, encode: Encode, pool: SessionPool, timeout_s: int) -> None:
        super().__init__(choose, encode, pool, timeout_s)
        self.xid = xid

    def _transaction(self, steps: TransactionSteps) -> TransactionId:
        return self.xid

    def prepare(self) -> bool:
        """First phase; return whether there is something to commit. Nothing can be added any more.

        Raises:
            ValueError: It has been prepared, or has ended.
            TransactionError: The broker does not know the branch any more.
            ConnectionFailed, DeadlineExceeded: It is unknown whether the branch is prepared; see ``MetaQ.prepared``.
        """
        votes: list[Vote] = []
        self._finish(lambda steps: votes.append(steps.prepare(self.xid)))
        return votes == [Vote.PREPARED]

    def rollback(self) -> None:
        """Drop the messages. Raises as ``prepare``."""
        self._finish(lambda steps: steps.rollback(self.xid))

    def _leave(self, kind: type[BaseException] | None) -> None:
        try:
            self.rollback()
        except (MetaqError, ValueError):
            if kind is None:
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A prepared branch, and the id of its broker."""

    xid: Xid
    broker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatch:
    """The newest batch of a query that a broker has decided."""

    query_id: str
    broker: int
    batch_id: int


class PreparedBranches:
    """The prepared branches of all brokers. A broker that does not answer raises an error that names it."""

    def __init__(self, directory: Directory, pool: SessionPool) -> None:
        self._directory, self._pool = directory, pool

    def all(self, unique: str | None = None) -> list[Prepared]:
        """Return the branches that wait for a decision; only with the resource name ``unique``, if given."""
        found: list[Prepared] = []
        for broker_id, address in self._directory.brokers().items():
            with self._pool.lease(address) as session:
                found += [Prepared(xid=xid, broker=broker_id) for xid in TransactionSteps(session).recover(unique)]
        return found

    def decided(self, query_ids: Collection[str]) -> list[LastBatch]:
        """Return the last decision of each query at each broker that has one; brokers without decisions have none."""
        found: list[LastBatch] = []
        for broker_id, address in self._directory.brokers().items():
            with self._pool.lease(address) as session:
                steps = TransactionSteps(session)
                with suppress(ExtensionMissing):
                    for query_id in query_ids:
                        batch_id = steps.last_decided(query_id)
                        if batch_id is not None:
                            found.append(LastBatch(query_id=query_id, broker=broker_id, batch_id=batch_id))
        return found

    def end(self, xid: Xid, *, commit: bool) -> None:
        """Commit or roll back a prepared branch, at the broker that has it.

        Raises:
            TransactionNotFound: No broker has it: it has been ended already, or was never prepared.
        """
        brokers = self._directory.brokers()
        holder = next((one.broker for one in self.all(xid.unique) if one.xid == xid), None)
        if holder is None:
            raise TransactionNotFound(str(xid), [str(address) for address in brokers.values()])
        with self._pool.lease(brokers[holder]) as session:
            steps = TransactionSteps(session)
            (steps.commit if commit else steps.rollback)(xid)
