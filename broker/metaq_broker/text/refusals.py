"""MetaQ's status codes and texts for refusals of the engine and of transactions.

Texts are MetaQ's own where it has one, because clients show them to people. A refused transaction step has the form
``XAException:code=N,msg=...`` if the XA specification has a code for it: the Java client parses it and passes the
number to its transaction coordinator.

Source: docs/protocol.md; docs/transactions.md (texts, codes, heuristic outcomes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from metaq.model import TransactionId, Xid
from metaq.statuses import BAD_REQUEST, CONFLICT, FAILED, FORBIDDEN, MOVED, NOT_FOUND, NOT_STARTED
from metaq_broker.log.engine.outcomes import (
    BlockInvalid,
    ChecksumMismatch,
    ClockImplausible,
    DiskFull,
    InsideMessage,
    NothingAt,
    NotMaster,
    OffsetNotStored,
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
    ChangeUnknown,
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


class RefusalRow(NamedTuple):
    """What clients get for a kind of refusal: its sentence, its status, and the XA code of a transaction step."""

    sentence: Callable[[Any], str]
    code: int = FAILED
    xa: int | None = None


XA_RESOURCE_ERROR: Final = -3
XA_UNKNOWN: Final = -4
XA_PROTOCOL: Final = -6

_LOCAL_HAS_NO_CODE: Final = (NotStarted, NoSpace)


def _xa_code(refusal: Refusal) -> int | None:
    if isinstance(refusal, EndedByOperator):
        return int(refusal.outcome)
    if isinstance(refusal, _LOCAL_HAS_NO_CODE) and not isinstance(refusal.key, Xid):
        return None
    return ROWS[type(refusal)].xa


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


def _reason(refusal: Any) -> str:
    return str(refusal.reason)


ROWS: Final[dict[type[Refusal], RefusalRow]] = {
    TypesInvalid: RefusalRow(_reason, BAD_REQUEST),
    BlockInvalid: RefusalRow(_reason),
    NotMaster: RefusalRow(_reason, FORBIDDEN),
    SlaveOutOfSync: RefusalRow(_reason),
    DiskFull: RefusalRow(_reason),
    ClockImplausible: RefusalRow(_reason),
    PartitionLimit: RefusalRow(_reason),
    PartitionUnavailable: RefusalRow(_reason),
    StorageFailed: RefusalRow(_reason),
    TopicUnknown: RefusalRow(lambda it: f"The server do not accept topic {it.topic}"),
    TopicReserved: RefusalRow(lambda it: f"only the broker itself puts messages to topic {it.topic}", FORBIDDEN),
    PartitionUnknown: RefusalRow(lambda it: f"wrong partition {it.partition}"),
    PartitionClosed: RefusalRow(lambda it: f"partition[{it.partition}] has been closed", FORBIDDEN),
    PartitionEmpty: RefusalRow(
        lambda it: f"The topic `{it.topic}` in partition `{it.partition}` is not exists", NOT_FOUND
    ),
    ChecksumMismatch: RefusalRow(lambda _: "Checksum failure,message may be corrupted when transfering on networking."),
    TooLarge: RefusalRow(lambda it: f"message of {it.length} bytes is longer than {it.limit} bytes (maxMessageSize)"),
    SizeInvalid: RefusalRow(lambda it: f"Bad request,invalid max size:{it.bytes_max}", BAD_REQUEST),
    OffsetNotStored: RefusalRow(lambda it: str(it.offset), MOVED),
    NothingAt: RefusalRow(lambda it: f"Could not find message at position {it.offset}", NOT_FOUND),
    InsideMessage: RefusalRow(
        lambda it: f"offset {it.offset} is inside the message that begins at {it.boundary}", BAD_REQUEST
    ),
    NotStarted: RefusalRow(lambda it: f"{_named(it.key)} {NOT_STARTED}.", xa=XA_UNKNOWN),
    NotAnXid: RefusalRow(lambda it: "Null xid" if it.key is None else f"{it.key} is not a valid xid", xa=XA_UNKNOWN),
    EndedByOperator: RefusalRow(lambda it: f"XA transaction '{it.key}' has been heuristically {_ENDED[it.outcome]}."),
    LocalPrepare: RefusalRow(lambda _: "Prepare not implemented on Local Transactions.", xa=XA_RESOURCE_ERROR),
    NotPrepared: RefusalRow(
        lambda _: "Cannot do 2 phase commit if the transaction has not been prepared.", xa=XA_PROTOCOL
    ),
    NotPossibleNow: RefusalRow(lambda it: _STEPS[it.step], xa=XA_PROTOCOL),
    PartitionNotNamed: RefusalRow(lambda it: f"Invalid partition for transaction command:{it.partition}"),
    BatchEmpty: RefusalRow(lambda it: f"a batch has at least 1 frame, this one says {it.count}"),
    TooManyTransactions: RefusalRow(
        lambda it: f"{it.limit} transactions are open, the broker allows no more (maxTxTimeoutTimerCapacity)"
    ),
    TransactionTooLarge: RefusalRow(
        lambda it: f"transaction '{it.key}' would hold {it.byte_count} bytes, at most {it.limit} are allowed"
    ),
    JournalUnavailable: RefusalRow(lambda it: f"transaction journal: {it.reason}", xa=XA_RESOURCE_ERROR),
    NoSpace: RefusalRow(lambda it: it.reason, xa=XA_RESOURCE_ERROR),
    OutcomeUnknown: RefusalRow(
        lambda it: f"outcome of transaction '{it.key}' is known after a restart of the broker: {it.reason}",
        xa=XA_RESOURCE_ERROR,
    ),
    DecisionUnknown: RefusalRow(
        lambda it: (
            f"decision on batch {it.batch_id} of query {it.query_id} is known after a restart of the broker: "
            f"{it.reason}"
        ),
        xa=XA_RESOURCE_ERROR,
    ),
    ChangeUnknown: RefusalRow(
        lambda it: f"{it.change} is known after a restart of the broker: {it.reason}", xa=XA_RESOURCE_ERROR
    ),
    CommittedNotStored: RefusalRow(
        lambda it: (
            f"transaction '{it.key}' is committed, and readable once the broker can store its messages: {it.reason}"
        ),
        xa=XA_RESOURCE_ERROR,
    ),
    AlreadyDecided: RefusalRow(
        lambda it: f"XA transaction '{it.key}' was committed with batch {it.batch_id} of query {it.query_id}",
        xa=XA_PROTOCOL,
    ),
    NewerDecision: RefusalRow(
        lambda it: f"batch {it.batch_id} of query {it.query_id} comes too late: batch {it.last} has been decided",
        CONFLICT,
    ),
    NotReadyToDecide: RefusalRow(
        lambda it: f"batch {it.batch_id} of query {it.query_id} cannot be decided, not prepared: {_listed(it.keys)}",
        xa=XA_PROTOCOL,
    ),
    OwnBranchesUnknown: RefusalRow(
        lambda it: (
            f"batch {it.batch_id} of query {it.query_id} cannot be decided, unknown on this broker: {_listed(it.keys)}"
        ),
        xa=XA_UNKNOWN,
    ),
    QueryOver: RefusalRow(lambda it: f"query {it.key.unique} of XA transaction '{it.key}' is over", xa=XA_PROTOCOL),
    NotMissing: RefusalRow(
        lambda it: f"XA transaction '{it.key}' is on this broker, there is nothing to accept", xa=XA_PROTOCOL
    ),
    DecisionsFull: RefusalRow(
        lambda it: (
            f"decisions of all queries would take more than {it.limit} bytes; forget those of queries that are gone"
        )
    ),
}
"""Each kind of refusal."""


class RefusalTexts:
    """The texts of one broker, which contain its id, host name and port."""

    def __init__(self, broker_id: int, host_name: str, port: int) -> None:
        self._broker_id = broker_id
        self._broker = f"meta://{host_name}:{port}"

    def plain(self, refusal: Refusal) -> Refused:
        """Return code and reason, without the broker's name."""
        row = ROWS[type(refusal)]
        sentence = row.sentence(refusal)
        if isinstance(refusal, PartitionClosed):  # MetaQ names the partition with its broker here
            sentence = sentence.replace("[", f"[{self._broker_id}-", 1)
        return Refused(row.code, sentence)

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
