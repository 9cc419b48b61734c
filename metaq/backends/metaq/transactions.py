"""Transactions on one broker: local ones, and XA branches for two-phase commit.

A local transaction belongs to its connection and dies with it. An XA branch belongs to the broker: any connection may
continue it, and once prepared it survives a restart. Messages are put with ``producer.put`` or ``put_batch`` and the
transaction's id; nothing is readable before the commit. Steps wait for their reply, one after the other; ``post`` and
``settle`` pipeline them.

After ``ConnectionFailed`` or ``DeadlineExceeded`` the outcome of a step is unknown. For XA: after ``prepare`` check
``recover``; after ``commit`` repeat it. XA code -4 (unknown) then proves nothing: the branch may have been committed,
or rolled back by another program. A broker knows the branches of a decision (``decide_contents``) until two later
decisions were made.

Source: docs/transactions.md; the decision is docs/adr/0007.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple
from uuid import uuid4

from metaq.backends.metaq.session import Session
from metaq.errors import BrokerError, ExtensionMissing, TransactionError
from metaq.model import LocalTransactionId, TransactionId, Xid, parse_transaction_id
from metaq.protocols.text.commands import Decide, TransactionCommand, TransactionType
from metaq.protocols.text.extensions import EXT_CONTENTS, EXT_DECIDE, EXT_DECISIONS

_XA_EXCEPTION: Final = re.compile(r"XAException:code=(-?\d+),msg=.*", re.DOTALL)


class Vote(Enum):
    """A branch's answer to ``prepare``; the value is the reply's text."""

    PREPARED = "0"
    READ_ONLY = "3"
    """The branch had no puts: it is finished, there is nothing to commit or roll back."""


class Posted(NamedTuple):
    """A step that was sent and is not answered yet."""

    opaque: int
    command: TransactionCommand | Decide


class DecidedBatch(NamedTuple):
    """The branches of a batch, and the description of its contents in the decision; "" if there is none."""

    branches: tuple[Xid, ...]
    contents: str


class LastDecision(NamedTuple):
    """The newest batch of a query that a broker has decided, and the description of its contents; "" if there
    is none.
    """

    batch_id: int
    contents: str


class TransactionSteps:
    """The transaction steps over one session. Every refusal is a ``TransactionError`` with the XA code, if there is
    one.

    All methods also raise ``ConnectionFailed``, ``DeadlineExceeded`` and ``ProtocolError``, as ``Session.call``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._session_id = f"py-{uuid4().hex}"
        self._numbers = itertools.count(1)

    def local_id(self) -> LocalTransactionId:
        """Return a new id for a local transaction on this session."""
        return LocalTransactionId(self._session_id, next(self._numbers))

    def begin(self, transaction: TransactionId, timeout_s: int = 0) -> None:
        """Start a transaction; has no effect if it is open already.

        ``timeout_s`` is how long it may stay unprepared and unfinished before the broker rolls it back; 0 = the
        broker's maximum, or never with a Java broker.
        """
        self._step("BEGIN", transaction, timeout_s=timeout_s)

    def prepare(self, xid: Xid) -> Vote:
        """First phase: after ``PREPARED`` the broker will commit or roll back as requested, across any restart."""
        return self.read_vote(self._step("PREPARE", xid))

    def read_vote(self, text: str) -> Vote:
        """Parse a branch's answer to PREPARE.

        Raises:
            ProtocolError: The text has another form; the session is closed.
        """
        try:
            return Vote(text)
        except ValueError:
            raise self._session.protocol_error(f"the answer to PREPARE is {text[:60]!r}, not 0 or 3") from None

    def commit(self, transaction: TransactionId) -> None:
        """Make the messages readable: of a prepared XA branch, or of a local transaction."""
        self._step("COMMIT_TWO_PHASE" if isinstance(transaction, Xid) else "COMMIT_ONE_PHASE", transaction)

    def commit_one_phase(self, xid: Xid) -> None:
        """Commit the only XA branch without preparing it."""
        self._step("COMMIT_ONE_PHASE", xid)

    def rollback(self, transaction: TransactionId) -> None:
        """Drop the transaction's messages."""
        self._step("ROLLBACK", transaction)

    def recover(self, unique: str | None = None) -> list[Xid]:
        """Return the branches that are prepared, or were completed heuristically and not forgotten; only of ``unique``
        if given.
        """
        return self.read_keys(self._step("RECOVER", None, unique=unique))

    def read_keys(self, text: str) -> list[Xid]:
        """Parse the keys in an answer to RECOVER.

        Raises:
            ProtocolError: The text has another form; the session is closed.
        """
        return [self._xid(line) for line in text.split("\r\n") if line]

    def forget(self, xid: Xid) -> None:
        """Have the broker forget a branch that was completed heuristically (XA codes 6, 7, 8)."""
        self._step("FORGET", xid)

    def end(self, transaction: TransactionId) -> None:
        """Announce that this session will send no more puts. The broker does not reply."""
        self._session.send(TransactionCommand(transaction, self._session_id, "END", 0))

    def decide(self, query_id: str, batch_id: int, branches: Sequence[Xid]) -> tuple[Xid, ...]:
        """Record durably that batch ``batch_id`` of a query consists of ``branches``, and commit this broker's.

        Return the branches of the batch: ``branches``, or the branches of an earlier decision (a replay), in which case
        the new ones must be rolled back. ``commit`` each returned branch: other brokers commit it then, this one waits
        until it is readable.

        Raises:
            ExtensionMissing: The broker does not offer decisions.
            TransactionError: 409 if a later batch of the query was decided; other codes as for a commit.
        """
        if EXT_DECIDE not in self._session.extensions:
            raise ExtensionMissing(self._session.address, EXT_DECIDE, "exactly-once delivery")
        return tuple(self.read_keys(self._ask(Decide(query_id, batch_id, tuple(branches), 0))))

    def decide_contents(
        self, query_id: str, batch_id: int, branches: Sequence[Xid], own: Sequence[int], contents: str
    ) -> DecidedBatch:
        """Decide as ``decide`` does, with a description of the contents and the list of this broker's branches.

        ``own`` are ascending indexes into ``branches``. ``contents`` is one line, which the broker stores and returns.
        The result is the first decision for the batch.

        Raises:
            ExtensionMissing: The broker does not support it.
            TransactionError: As ``decide``; XA code -4 if an own branch is not on the broker (any more). Nothing was
                recorded.
        """
        return self.read_decided(self.settle(self.post_decision(query_id, batch_id, branches, own, contents)))

    def post_decision(
        self, query_id: str, batch_id: int, branches: Sequence[Xid], own: Sequence[int], contents: str
    ) -> Posted:
        """Send the request of ``decide_contents`` without waiting; see ``post``."""
        if EXT_CONTENTS not in self._session.extensions:
            raise ExtensionMissing(self._session.address, EXT_CONTENTS, "exactly-once delivery")
        command = Decide(query_id, batch_id, tuple(branches), 0, contents, tuple(own))
        return Posted(self._session.post(command), command)

    def read_decided(self, text: str) -> DecidedBatch:
        """Parse the answer to a decision with contents.

        Raises:
            ProtocolError: The text has another form; the session is closed.
        """
        contents, _, keys = text.partition("\r\n")
        return DecidedBatch(tuple(self.read_keys(keys)), contents)

    def last_decided(self, query_id: str) -> int | None:
        """Return the newest batch of a query that this broker has decided; ``None`` if there is none, or it was
        forgotten.
        """
        self._require_decisions()
        return self.read_batch(self._step("DECIDED", None, unique=query_id))

    def read_batch(self, text: str) -> int | None:
        """Parse the batch in an answer to DECIDED.

        Raises:
            ProtocolError: The text has another form; the session is closed.
        """
        try:
            return int(text) if text else None
        except ValueError:
            raise self._session.protocol_error(f"the answer to DECIDED is {text[:60]!r}, not a number") from None

    def read_last(self, text: str) -> LastDecision | None:
        """Parse the decision in an answer to DECIDED_CONTENTS. Raises as ``read_batch``."""
        number, _, contents = text.partition("\r\n")
        batch_id = self.read_batch(number)
        return None if batch_id is None else LastDecision(batch_id, contents)

    def end_query(self, query_id: str) -> None:
        """Have the broker forget the decisions of a finished query, and refuse further branches of it.

        Call only after every decided branch was committed on every broker.
        """
        self._require_decisions()
        self._step("FORGET", None, unique=query_id)

    def _require_decisions(self) -> None:
        if EXT_DECISIONS not in self._session.extensions:
            raise ExtensionMissing(self._session.address, EXT_DECISIONS, "exactly-once delivery")

    def post(
        self,
        type_: TransactionType,
        key: TransactionId | None,
        timeout_s: int | None = None,
        unique: str | None = None,
    ) -> Posted:
        """Send a step without waiting. Only for a broker that executes the commands of one connection in order.

        Every posted step counts as one of the session's ``OUTSTANDING_MAX`` requests until it is settled.
        """
        command = TransactionCommand(key, self._session_id, type_, 0, timeout_s, unique)
        return Posted(self._session.post(command), command)

    def settle(self, posted: Posted) -> str:
        """Wait for the answer to a posted step; return its text."""
        try:
            return self._session.text_of(self._session.wait(posted.opaque), posted.command)
        except BrokerError as error:
            raise _refused(error) from error

    def _step(
        self,
        type_: TransactionType,
        key: TransactionId | None,
        timeout_s: int | None = None,
        unique: str | None = None,
    ) -> str:
        return self._ask(TransactionCommand(key, self._session_id, type_, 0, timeout_s, unique))

    def _ask(self, command: TransactionCommand | Decide) -> str:
        try:
            return self._session.ask(command)
        except BrokerError as error:
            raise _refused(error) from error

    def _xid(self, line: str) -> Xid:
        try:
            key = parse_transaction_id(line)
        except ValueError as error:
            raise self._session.protocol_error(str(error)) from None
        if not isinstance(key, Xid):
            raise self._session.protocol_error(f"{key} is listed as an XA branch")
        return key


def _refused(error: BrokerError) -> TransactionError:
    match = _XA_EXCEPTION.fullmatch(error.text)
    return TransactionError(error.address, error.action, error.code, error.text, int(match[1]) if match else None)
