"""MetaQ's status codes and texts for refusals of the engine and of transactions.

Texts are MetaQ's own where it has one, because clients show them to people. A refused transaction step has the form
``XAException:code=N,msg=...`` if the XA specification has a code for it: the Java client parses it and passes the
number to its transaction coordinator.

Source: docs/protocol.md; docs/transactions.md (texts, codes, heuristic outcomes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from metaq.model import TransactionId, Xid
from metaq.protocols.text.codes import BAD_REQUEST, FAILED, FORBIDDEN, MOVED, NOT_FOUND
from metaq_broker.log.engine.outcomes import (
    BlockInvalid,
    ChecksumMismatch,
    ClockImplausible,
    DiskFull,
    InsideMessage,
    NothingAt,
    NotMaster,
    OffsetMoved,
    PartitionClosed,
    PartitionEmpty,
    PartitionLimit,
    PartitionUnavailable,
    PartitionUnknown,
    Refusal,
    SizeInvalid,
    SlaveOutOfSync,
    StorageFailed,
    TooLarge,
    TopicReserved,
    TopicUnknown,
    TypesInvalid,
)
from metaq_broker.transactions.outcomes import (
    AlreadyDecided,
    BatchEmpty,
    CommittedNotStored,
    DecisionsFull,
    DecisionUnknown,
    EndedByOperator,
    JournalUnavailable,
    LocalPrepare,
    NewerDecision,
    NoSpace,
    NotAnXid,
    NotMissing,
    NotPossibleNow,
    NotPrepared,
    NotReadyToDecide,
    NotStarted,
    Outcome,
    OutcomeUnknown,
    OwnBranchesUnknown,
    PartitionNotNamed,
    QueryOver,
    TooManyTransactions,
    TransactionTooLarge,
)


class Refused(NamedTuple):
    """An error reply: status code and text for the client."""

    code: int
    text: str


CONFLICT: Final = 409
"""Status of a decision that comes too late."""

_CODES: Final[dict[type[Refusal], int]] = {
    PartitionClosed: FORBIDDEN,
    TopicReserved: FORBIDDEN,
    NotMaster: FORBIDDEN,
    SizeInvalid: BAD_REQUEST,
    TypesInvalid: BAD_REQUEST,
    InsideMessage: BAD_REQUEST,
    OffsetMoved: MOVED,
    NothingAt: NOT_FOUND,
    PartitionEmpty: NOT_FOUND,
    NewerDecision: CONFLICT,
}
"""Status of each kind of refusal; ``FAILED`` for all others."""


XA_RESOURCE_ERROR: Final = -3
XA_UNKNOWN: Final = -4
XA_PROTOCOL: Final = -6

_XA_CODES: Final[dict[type[Refusal], int]] = {
    NotStarted: XA_UNKNOWN,
    NotAnXid: XA_UNKNOWN,
    OwnBranchesUnknown: XA_UNKNOWN,
    LocalPrepare: XA_RESOURCE_ERROR,
    JournalUnavailable: XA_RESOURCE_ERROR,
    OutcomeUnknown: XA_RESOURCE_ERROR,
    DecisionUnknown: XA_RESOURCE_ERROR,
    CommittedNotStored: XA_RESOURCE_ERROR,
    NoSpace: XA_RESOURCE_ERROR,
    NotPossibleNow: XA_PROTOCOL,
    NotPrepared: XA_PROTOCOL,
    AlreadyDecided: XA_PROTOCOL,
    NotReadyToDecide: XA_PROTOCOL,
    QueryOver: XA_PROTOCOL,
    NotMissing: XA_PROTOCOL,
}
_LOCAL_HAS_NO_CODE: Final = (NotStarted, NoSpace)


def _xa_code(refusal: Refusal) -> int | None:
    if isinstance(refusal, EndedByOperator):
        return int(refusal.outcome)
    if isinstance(refusal, _LOCAL_HAS_NO_CODE) and not isinstance(refusal.key, Xid):
        return None
    return _XA_CODES.get(type(refusal))


_STEPS: Final = {
    "PUT": "Cannot put now, the transaction is prepared or ending.",
    "PREPARE": "Cannot call prepare now.",
    "PREPARE_EMPTY": "Cannot call prepare now.",
    "COMMIT_ONE_PHASE": "Cannot call commit now.",
    "COMMIT_TWO_PHASE": "Cannot call commit now.",
    "ROLLBACK": "Cannot call rollback now.",
    "DECIDE": "Cannot decide now.",
    "OPERATOR": "Only a prepared transaction can be ended by an operator.",
}
_ENDED: Final = {Outcome.ROLLED_BACK: "rolled back", Outcome.COMMITTED: "committed", Outcome.COMPLETED: "completed"}


def _named(key: TransactionId) -> str:
    return f"{'XA' if isinstance(key, Xid) else 'Local'} transaction '{key}'"


def _listed(keys: Sequence[Xid]) -> str:
    return ", ".join(map(str, keys[:10])) + (f" and {len(keys) - 10} more" if len(keys) > 10 else "")


_TRANSACTIONS: Final[dict[type[Refusal], Callable[..., str]]] = {
    NotStarted: lambda it: f"{_named(it.key)} has not been started.",
    NotAnXid: lambda it: "Null xid" if it.key is None else f"{it.key} is not a valid xid",
    EndedByOperator: lambda it: f"XA transaction '{it.key}' has been heuristically {_ENDED[it.outcome]}.",
    LocalPrepare: lambda _: "Prepare not implemented on Local Transactions.",
    NotPrepared: lambda _: "Cannot do 2 phase commit if the transaction has not been prepared.",
    NotPossibleNow: lambda it: _STEPS[it.step],
    PartitionNotNamed: lambda it: f"Invalid partition for transaction command:{it.partition}",
    BatchEmpty: lambda it: f"a batch has at least 1 frame, this one says {it.count}",
    TooManyTransactions: lambda it: (
        f"{it.limit} transactions are open, the broker allows no more (maxTxTimeoutTimerCapacity)"
    ),
    TransactionTooLarge: lambda it: (
        f"transaction '{it.key}' would hold {it.byte_count} bytes, at most {it.limit} are allowed"
    ),
    JournalUnavailable: lambda it: f"transaction journal: {it.reason}",
    NoSpace: lambda it: it.reason,
    OutcomeUnknown: lambda it: f"outcome of transaction '{it.key}' is known after a restart of the broker: {it.reason}",
    DecisionUnknown: lambda it: (
        f"decision on batch {it.batch_id} of query {it.query_id} is known after a restart of the broker: {it.reason}"
    ),
    CommittedNotStored: lambda it: (
        f"transaction '{it.key}' is committed, and readable once the broker can store its messages: {it.reason}"
    ),
    AlreadyDecided: lambda it: (
        f"XA transaction '{it.key}' was committed with batch {it.batch_id} of query {it.query_id}"
    ),
    NewerDecision: lambda it: (
        f"batch {it.batch_id} of query {it.query_id} comes too late: batch {it.last} has been decided"
    ),
    NotReadyToDecide: lambda it: (
        f"batch {it.batch_id} of query {it.query_id} cannot be decided, not prepared: {_listed(it.keys)}"
    ),
    OwnBranchesUnknown: lambda it: (
        f"batch {it.batch_id} of query {it.query_id} cannot be decided, unknown on this broker: {_listed(it.keys)}"
    ),
    QueryOver: lambda it: f"query {it.key.unique} of XA transaction '{it.key}' is over",
    NotMissing: lambda it: f"XA transaction '{it.key}' is on this broker, there is nothing to accept",
    DecisionsFull: lambda it: (
        f"decisions of all queries would take more than {it.limit} bytes; forget those of queries that are gone"
    ),
}


def _details(broker_id: int) -> dict[type[Refusal], Callable[..., str]]:
    def reason(refusal: StorageFailed) -> str:
        return refusal.reason

    explained = (
        *(TypesInvalid, BlockInvalid, NotMaster, SlaveOutOfSync, DiskFull, ClockImplausible),
        *(PartitionLimit, PartitionUnavailable, StorageFailed),
    )
    return {
        **dict.fromkeys(explained, reason),
        TopicUnknown: lambda it: f"The server do not accept topic {it.topic}",
        TopicReserved: lambda it: f"only the broker itself puts messages to topic {it.topic}",
        PartitionUnknown: lambda it: f"wrong partition {it.partition}",
        PartitionClosed: lambda it: f"partition[{broker_id}-{it.partition}] has been closed",
        PartitionEmpty: lambda it: f"The topic `{it.topic}` in partition `{it.partition}` is not exists",
        ChecksumMismatch: lambda _: "Checksum failure,message may be corrupted when transfering on networking.",
        TooLarge: lambda it: f"message of {it.length} bytes is longer than {it.limit} bytes (maxMessageSize)",
        SizeInvalid: lambda it: f"Bad request,invalid max size:{it.bytes_max}",
        OffsetMoved: lambda it: str(it.offset),
        NothingAt: lambda it: f"Could not find message at position {it.offset}",
        InsideMessage: lambda it: f"offset {it.offset} is inside the message that begins at {it.boundary}",
        **_TRANSACTIONS,
    }


class RefusalTexts:
    """The texts of one broker, which contain its id, host name and port."""

    def __init__(self, broker_id: int, host_name: str, port: int) -> None:
        self._details = _details(broker_id)
        self._broker = f"meta://{host_name}:{port}"

    def plain(self, refusal: Refusal) -> Refused:
        """Return code and reason, without the broker's name."""
        kind = type(refusal)
        return Refused(_CODES.get(kind, FAILED), self._details[kind](refusal))

    def put(self, topic: str, partition: int, refusal: Refusal) -> Refused:
        """Return the refusal of a put, with broker and partition."""
        code, detail = self.plain(refusal)
        where = f"[broker '{self._broker}'] [partition '{topic}-{partition}']"
        return Refused(code, f"Put message to {where} failed.Detail:{detail}")

    def step(self, refusal: Refusal) -> Refused:
        """Return the refusal of a transaction step, with its XA code where it has one."""
        code, sentence = self.plain(refusal)
        number = _xa_code(refusal)
        return Refused(code, sentence if number is None else f"XAException:code={number},msg={sentence}")

    def put_in_transaction(self, refusal: Refusal) -> Refused:
        """Return the refusal of a put inside a transaction; an unknown transaction has no XA code here."""
        bare = isinstance(refusal, NotStarted | NotAnXid | EndedByOperator)
        return self.plain(refusal) if bare else self.step(refusal)

    def get(self, topic: str, partition: int, refusal: Refusal) -> Refused:
        if isinstance(refusal, PartitionClosed):
            code, detail = self.plain(refusal)
            return Refused(code, f"P{detail[1:]}")  # MetaQ writes it both ways
        return self.plain(refusal)
