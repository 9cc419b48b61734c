"""Why a transaction step is refused: every text and XA code that a client can get, in one place.

A refusal is an answer, not a fault of the broker. Texts are MetaQ's own wherever it has one, because clients show them
to people; the numbers are those of the XA specification, which the Java client hands to its transaction coordinator.

Source: docs/transactions.md (texts, codes, heuristic outcomes).
"""

from __future__ import annotations

from typing import Final

from metaq.errors import MetaqError
from metaq.model import TransactionId, Xid

XA_HEURISTIC_ROLLBACK: Final = 6
XA_HEURISTIC_COMMIT: Final = 7
XA_HEURISTIC_HAZARD: Final = 8
XA_ROLLED_BACK_OTHER: Final = 104
XA_RESOURCE_ERROR: Final = -3
XA_UNKNOWN: Final = -4
XA_PROTOCOL: Final = -6
XA_DUPLICATE: Final = -8

FAILED: Final = 500
"""Status of a refusal."""

CONFLICT: Final = 409
"""Status of a decision that comes too late."""


class TransactionRefused(MetaqError):
    """A transaction command was not carried out. ``code`` is the reply's status, ``text`` its body.

    With ``xa_code`` the text gets the form ``XAException:code=N,msg=...``, which the Java client takes apart.
    """

    def __init__(self, message: str, *, xa_code: int | None = None, code: int = FAILED) -> None:
        self.message, self.xa_code, self.code = message, xa_code, code
        super().__init__(message)

    @property
    def text(self) -> str:
        """The body of the reply."""
        return self.message if self.xa_code is None else f"XAException:code={self.xa_code},msg={self.message}"

    def plain(self) -> TransactionRefused:
        """Return this refusal without its XA code: how a refused put says it."""
        return TransactionRefused(self.message, code=self.code)

    def __str__(self) -> str:
        return self.text


def not_started(key: TransactionId) -> TransactionRefused:
    """The broker does not know the transaction: never begun, finished, expired, or another connection's."""
    if isinstance(key, Xid):
        return TransactionRefused(f"XA transaction '{key}' has not been started.", xa_code=XA_UNKNOWN)
    return TransactionRefused(f"Local transaction '{key}' has not been started.")


def not_an_xid(key: TransactionId | None) -> TransactionRefused:
    """A step that exists for XA transactions only was asked of something else."""
    return TransactionRefused("Null xid" if key is None else f"{key} is not a valid xid", xa_code=XA_UNKNOWN)


def local_prepare() -> TransactionRefused:
    """A local transaction has one phase only."""
    return TransactionRefused("Prepare not implemented on Local Transactions.", xa_code=XA_RESOURCE_ERROR)


def random_partition(partition: int) -> TransactionRefused:
    """A put inside a transaction must name its partition."""
    return TransactionRefused(f"Invalid partition for transaction command:{partition}")


def wrong_checksum() -> TransactionRefused:
    """The body is not what the client's checksum says."""
    return TransactionRefused("Checksum failure,message may be corrupted when transfering on networking.")


def too_many_transactions(limit: int) -> TransactionRefused:
    """The broker keeps ``limit`` unfinished transactions already."""
    return TransactionRefused(f"{limit} transactions are open, the broker allows no more (maxTxTimeoutTimerCapacity)")


def transaction_too_large(key: TransactionId, byte_count: int, limit: int) -> TransactionRefused:
    """With this put the transaction would hold ``byte_count`` bytes of frames."""
    return TransactionRefused(f"transaction '{key}' would hold {byte_count} bytes, at most {limit} are allowed")


def message_too_long(length: int, limit: int) -> TransactionRefused:
    """The body of a put is longer than the broker takes."""
    return TransactionRefused(f"message of {length} bytes is longer than {limit} bytes (maxMessageSize)")


def journal_refused(reason: str) -> TransactionRefused:
    """The journal could not take the record; nothing changed, the same step may succeed later."""
    return TransactionRefused(f"transaction journal: {reason}", xa_code=XA_RESOURCE_ERROR)


def no_space(key: TransactionId, reason: str) -> TransactionRefused:
    """The disk is nearly full; nothing changed, the same step may succeed later."""
    return TransactionRefused(reason, xa_code=XA_RESOURCE_ERROR if isinstance(key, Xid) else None)


def outcome_unknown(key: TransactionId, reason: str) -> TransactionRefused:
    """The journal failed while the step's record was on its way to the disk; a restart will tell what became of it."""
    message = f"outcome of transaction '{key}' is known after a restart of the broker: {reason}"
    return TransactionRefused(message, xa_code=XA_RESOURCE_ERROR)


def decision_unknown(query_id: str, batch_id: int, reason: str) -> TransactionRefused:
    """As ``outcome_unknown``, for a decision: asking again after the restart tells."""
    message = f"decision on batch {batch_id} of query {query_id} is known after a restart of the broker: {reason}"
    return TransactionRefused(message, xa_code=XA_RESOURCE_ERROR)


def committed_not_stored(key: TransactionId, reason: str) -> TransactionRefused:
    """The commit is decided and durable, but a partition does not take the messages; a restart completes it."""
    message = f"transaction '{key}' is committed, but readable only after a restart of the broker: {reason}"
    return TransactionRefused(message, xa_code=XA_RESOURCE_ERROR)


def already_decided(key: TransactionId, query_id: str, batch_id: int) -> TransactionRefused:
    """The branch was committed by a decision and can be neither begun again nor rolled back."""
    message = f"XA transaction '{key}' was committed with batch {batch_id} of query {query_id}"
    return TransactionRefused(message, xa_code=XA_PROTOCOL)


def newer_decision(query_id: str, batch_id: int, last: int) -> TransactionRefused:
    """A writer that was replaced meanwhile asks for a batch that is history."""
    message = f"batch {batch_id} of query {query_id} comes too late: batch {last} has been decided"
    return TransactionRefused(message, code=CONFLICT)


def not_ready_to_decide(batch_id: int, query_id: str, keys: list[str]) -> TransactionRefused:
    """Some branches are known here but cannot be committed by a decision; nothing was recorded."""
    message = f"batch {batch_id} of query {query_id} cannot be decided, not prepared: {_listed(keys)}"
    return TransactionRefused(message, xa_code=XA_PROTOCOL)


def own_branches_unknown(batch_id: int, query_id: str, keys: list[str]) -> TransactionRefused:
    """Branches that were prepared on this broker are not here any more; nothing was recorded."""
    message = f"batch {batch_id} of query {query_id} cannot be decided, unknown on this broker: {_listed(keys)}"
    return TransactionRefused(message, xa_code=XA_UNKNOWN)


def _listed(keys: list[str]) -> str:
    return ", ".join(keys[:10]) + (f" and {len(keys) - 10} more" if len(keys) > 10 else "")


def query_over(key: Xid) -> TransactionRefused:
    """The query that the branch belongs to has been ended; a branch of it would never be decided."""
    return TransactionRefused(f"query {key.unique} of XA transaction '{key}' is over", xa_code=XA_PROTOCOL)


def not_missing(key: Xid) -> TransactionRefused:
    """An operator accepts the loss of a branch whose messages are here."""
    message = f"XA transaction '{key}' is on this broker, there is nothing to accept"
    return TransactionRefused(message, xa_code=XA_PROTOCOL)


def decisions_full(limit: int) -> TransactionRefused:
    """The decisions of all queries together would take more than ``limit`` bytes."""
    rule = "forget those of queries that are gone"
    return TransactionRefused(f"decisions of all queries would take more than {limit} bytes; {rule}")
