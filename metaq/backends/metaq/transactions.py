"""Transactions on one broker: local ones, and XA branches for two-phase commit.

A local transaction belongs to its connection and dies with it. An XA branch belongs to the broker: any connection may
go on with it, and once prepared it survives a restart. Messages are put with ``producer.put`` or ``put_batch`` and the
transaction's id; nothing is readable before the commit. Steps wait for their reply, one after the other; ``post`` and
``settle`` are for those who have many under way.

A step that ends in ``ConnectionFailed`` or ``DeadlineExceeded`` may have been carried out. For XA: after ``prepare``
look in ``recover``; after ``commit`` ask again. XA code -4 (unknown) then says nothing: the branch may have been
committed, or rolled back by somebody else. A broker answers for the branches of a decision (``decide_contents``) until
two later ones were made.

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
from metaq.protocols.text.commands import Decide, Transaction, TransactionType
from metaq.protocols.text.extensions import EXT_CONTENTS, EXT_DECIDE, EXT_DECISIONS

_XA_EXCEPTION: Final = re.compile(r"XAException:code=(-?\d+),msg=.*", re.DOTALL)


class Vote(Enum):
    """What a branch answers to ``prepare``; the value is the reply's text."""

    PREPARED = "0"
    READ_ONLY = "3"
    """Nothing was put: the branch is finished, there is nothing to commit or roll back."""


class Posted(NamedTuple):
    """A step that was sent and not yet answered."""

    opaque: int
    command: Transaction | Decide


class DecidedBatch(NamedTuple):
    """What a batch consists of, and what was said of its contents when it was decided; "" if nothing was."""

    branches: tuple[Xid, ...]
    contents: str


class LastDecision(NamedTuple):
    """The newest batch of a query that a broker has decided, and what was said of its contents; "" if nothing was."""

    batch_id: int
    contents: str


class Transactions:
    """The transaction steps over one session. Every refusal is a ``TransactionError`` with the XA code, if given.

    All methods also raise ``ConnectionFailed``, ``DeadlineExceeded`` and ``ProtocolError``, as ``Session.call``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._session_id = f"py-{uuid4().hex}"
        self._numbers = itertools.count(1)

    def local_id(self) -> LocalTransactionId:
        """A fresh id for a local transaction on this session."""
        return LocalTransactionId(self._session_id, next(self._numbers))

    def begin(self, transaction: TransactionId, timeout_s: int = 0) -> None:
        """Start a transaction; again for one that is open changes nothing.

        ``timeout_s`` is how long it may stay unprepared and unfinished before the broker rolls it back; 0 = the
        broker's maximum, or never if it is a Java broker.
        """
        self._step("BEGIN", transaction, timeout_s=timeout_s)

    def prepare(self, xid: Xid) -> Vote:
        """First phase: after ``PREPARED`` the broker will commit or roll back as requested, across any restart."""
        return self.read_vote(self._step("PREPARE", xid))

    def read_vote(self, text: str) -> Vote:
        """What a branch answered to PREPARE.

        Raises:
            ProtocolError: The text is something else; the session is closed.
        """
        try:
            return Vote(text)
        except ValueError:
            raise self._session.protocol_error(f"the answer to PREPARE is {text[:60]!r}, not 0 or 3") from None

    def commit(self, transaction: TransactionId) -> None:
        """Make its messages readable: an XA branch that was prepared, or a local transaction."""
        self._step("COMMIT_TWO_PHASE" if isinstance(transaction, Xid) else "COMMIT_ONE_PHASE", transaction)

    def commit_one_phase(self, xid: Xid) -> None:
        """Commit an XA branch that was not prepared, when it is the only one."""
        self._step("COMMIT_ONE_PHASE", xid)

    def rollback(self, transaction: TransactionId) -> None:
        """Drop its messages."""
        self._step("ROLLBACK", transaction)

    def recover(self, unique: str | None = None) -> list[Xid]:
        """Branches that are prepared, or were ended by hand and not forgotten; only those of ``unique``, if given."""
        return self.read_keys(self._step("RECOVER", None, unique=unique))

    def read_keys(self, text: str) -> list[Xid]:
        """The keys in an answer to RECOVER.

        Raises:
            ProtocolError: The text is something else; the session is closed.
        """
        return [self._xid(line) for line in text.split("\r\n") if line]

    def forget(self, xid: Xid) -> None:
        """Let the broker drop its memory of a branch that was ended by hand (XA codes 6, 7, 8)."""
        self._step("FORGET", xid)

    def end(self, transaction: TransactionId) -> None:
        """Say that no more puts will come over this session. The broker answers nothing."""
        self._session.send(Transaction(transaction, self._session_id, "END", 0))

    def decide(self, query_id: str, batch_id: int, branches: Sequence[Xid]) -> tuple[Xid, ...]:
        """Record durably that batch ``batch_id`` of a query consists of ``branches``, and commit this broker's.

        Returns what the batch consists of now: ``branches``, or what was decided for it before (a replay), in which
        case the new branches have to be rolled back. ``commit`` each one returned: on other brokers to commit it, on
        this one to wait until it is readable.

        Raises:
            ExtensionMissing: The broker does not offer decisions.
            TransactionError: 409 if a later batch of the query has been decided; other codes as for a commit.
        """
        if EXT_DECIDE not in self._session.extensions:
            raise ExtensionMissing(self._session.address, EXT_DECIDE, "exactly-once delivery")
        return tuple(self.read_keys(self._ask(Decide(query_id, batch_id, tuple(branches), 0))))

    def decide_contents(
        self, query_id: str, batch_id: int, branches: Sequence[Xid], own: Sequence[int], contents: str
    ) -> DecidedBatch:
        """As ``decide``, and say what the batch contains and which of its branches are this broker's.

        ``own`` are positions in ``branches``, growing. ``contents`` is one line; the broker keeps and returns it. The
        answer is that of the first decision for the batch.

        Raises:
            ExtensionMissing: The broker does not offer it.
            TransactionError: As ``decide``; XA code -4 if an own branch is not on the broker (any more). Nothing was
                recorded then.
        """
        return self.read_decided(self.settle(self.post_decision(query_id, batch_id, branches, own, contents)))

    def post_decision(
        self, query_id: str, batch_id: int, branches: Sequence[Xid], own: Sequence[int], contents: str
    ) -> Posted:
        """Send what ``decide_contents`` sends and do not wait; see ``post``."""
        if EXT_CONTENTS not in self._session.extensions:
            raise ExtensionMissing(self._session.address, EXT_CONTENTS, "exactly-once delivery")
        command = Decide(query_id, batch_id, tuple(branches), 0, contents, tuple(own))
        return Posted(self._session.post(command), command)

    def read_decided(self, text: str) -> DecidedBatch:
        """What a batch consists of, from the answer to a decision with contents.

        Raises:
            ProtocolError: The text is something else; the session is closed.
        """
        contents, _, keys = text.partition("\r\n")
        return DecidedBatch(tuple(self.read_keys(keys)), contents)

    def last_decided(self, query_id: str) -> int | None:
        """The newest batch of a query that this broker has decided; ``None`` if it has not, or has forgotten it."""
        self._require_decisions()
        return self.read_batch(self._step("DECIDED", None, unique=query_id))

    def read_batch(self, text: str) -> int | None:
        """The batch in an answer to DECIDED.

        Raises:
            ProtocolError: The text is something else; the session is closed.
        """
        try:
            return int(text) if text else None
        except ValueError:
            raise self._session.protocol_error(f"the answer to DECIDED is {text[:60]!r}, not a number") from None

    def read_last(self, text: str) -> LastDecision | None:
        """The decision in an answer to DECIDED_CONTENTS. Raises as ``read_batch``."""
        number, _, contents = text.partition("\r\n")
        batch_id = self.read_batch(number)
        return None if batch_id is None else LastDecision(batch_id, contents)

    def end_query(self, query_id: str) -> None:
        """Let the broker forget what was decided for a query that is over, and refuse further branches of it.

        Only after every decided branch has been committed, on every broker.
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
        """Send a step and do not wait. Only for a broker that carries out what comes over one connection in order.

        Every step posted takes one of the session's ``OUTSTANDING_MAX`` places until it is settled.
        """
        command = Transaction(key, self._session_id, type_, 0, timeout_s, unique)
        return Posted(self._session.post(command), command)

    def settle(self, posted: Posted) -> str:
        """Wait for the answer to a step that was posted; its text."""
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
        return self._ask(Transaction(key, self._session_id, type_, 0, timeout_s, unique))

    def _ask(self, command: Transaction | Decide) -> str:
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
