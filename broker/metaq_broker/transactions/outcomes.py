"""Typed refusals of transaction steps, independent of any protocol's texts and codes.

A refusal is an expected outcome: the step was not carried out. Inside the package it travels as the exception
``TransactionRefused``; callbacks get the value.

Source: docs/transactions.md (texts, codes, heuristic outcomes).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from metaq.errors import MetaqError
from metaq.model import TransactionId, Xid
from metaq_broker.log.engine.outcomes import Refusal


class TransactionRefused(MetaqError):
    """A step was refused; ``refusal`` says why."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal)


class Outcome(IntEnum):
    """What an operator did with a prepared transaction; the numbers are stored in the journal."""

    ROLLED_BACK = 6
    COMMITTED = 7
    COMPLETED = 8
    """Completed outside the broker: the messages are dropped, and the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class NotStarted(Refusal):
    """The broker does not know the transaction: never begun, finished, expired, or another connection's."""

    key: TransactionId


@dataclass(frozen=True, slots=True)
class NotAnXid(Refusal):
    """A step that exists only for XA transactions was requested for another key, or for none."""

    key: TransactionId | None


@dataclass(frozen=True, slots=True)
class EndedByOperator(Refusal):
    """An operator has completed the transaction manually."""

    key: Xid
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LocalPrepare(Refusal):
    """PREPARE of a local transaction, which has one phase only."""


@dataclass(frozen=True, slots=True)
class NotPrepared(Refusal):
    """A two-phase commit of a transaction that is not prepared."""


@dataclass(frozen=True, slots=True)
class NotPossibleNow(Refusal):
    """The transaction's state does not allow ``step``, the name of an event in ``state``."""

    step: str


@dataclass(frozen=True, slots=True)
class PartitionNotNamed(Refusal):
    """A put inside a transaction must name its partition."""

    partition: int


@dataclass(frozen=True, slots=True)
class BatchEmpty(Refusal):
    """A batch has no frames."""

    count: int


@dataclass(frozen=True, slots=True)
class TooManyTransactions(Refusal):
    """The broker has ``limit`` unfinished transactions already."""

    limit: int


@dataclass(frozen=True, slots=True)
class TransactionTooLarge(Refusal):
    """With this put the transaction would have ``byte_count`` bytes of frames."""

    key: TransactionId
    byte_count: int
    limit: int


@dataclass(frozen=True, slots=True)
class JournalUnavailable(Refusal):
    """The journal could not write the record. Nothing changed; the same step may succeed later."""

    reason: str


@dataclass(frozen=True, slots=True)
class NoSpace(Refusal):
    """The disk is nearly full. Nothing changed; the same step may succeed later."""

    key: TransactionId
    reason: str


@dataclass(frozen=True, slots=True)
class OutcomeUnknown(Refusal):
    """The journal failed before the step's record was durable; the outcome is known after a restart."""

    key: TransactionId
    reason: str


@dataclass(frozen=True, slots=True)
class DecisionUnknown(Refusal):
    """It is unknown whether the decision was recorded; ask again after the restart."""

    query_id: str
    batch_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ChangeUnknown(Refusal):
    """The journal failed before the record of ``change`` was durable; it is known after a restart."""

    change: str
    reason: str


@dataclass(frozen=True, slots=True)
class CommittedNotStored(Refusal):
    """The commit is decided and durable, but a partition cannot store the messages now; the broker tries again."""

    key: TransactionId
    reason: str


@dataclass(frozen=True, slots=True)
class AlreadyDecided(Refusal):
    """The branch was committed by a decision and can be neither begun again nor rolled back."""

    key: TransactionId
    query_id: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class NewerDecision(Refusal):
    """The decision is for a batch before the last one; its writer has been replaced."""

    query_id: str
    batch_id: int
    last: int


@dataclass(frozen=True, slots=True)
class NotReadyToDecide(Refusal):
    """Some branches are known here, but a decision cannot commit them. Nothing was recorded."""

    query_id: str
    batch_id: int
    keys: tuple[Xid, ...]


@dataclass(frozen=True, slots=True)
class OwnBranchesUnknown(Refusal):
    """Branches that were prepared on this broker are no longer here. Nothing was recorded."""

    query_id: str
    batch_id: int
    keys: tuple[Xid, ...]


@dataclass(frozen=True, slots=True)
class QueryOver(Refusal):
    """The query of this branch has ended; no decision about the branch would follow."""

    key: Xid


@dataclass(frozen=True, slots=True)
class NotMissing(Refusal):
    """An operator tried to accept the loss of a branch whose messages are here."""

    key: Xid


@dataclass(frozen=True, slots=True)
class DecisionsFull(Refusal):
    """The decisions of all queries together would take more than ``limit`` bytes."""

    limit: int
