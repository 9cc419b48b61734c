"""Transactions: committing, rolling back and asking about half messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metaq.protocols.remoting.codes import request_code
from metaq.protocols.remoting.headers.fields import Request, Right
from metaq.protocols.remoting.wire_types import I32, I64

UNKNOWN: Final = 0
"""``commit_or_rollback``: unknown; the broker will ask again."""
COMMIT: Final = 8
"""``commit_or_rollback``: deliver the message."""
ROLLBACK: Final = 12
"""``commit_or_rollback``: discard the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction(Request):
    """Decide about a half message. One-way.

    ``tran_state_table_offset`` is its queue offset, ``commit_log_offset`` its offset in the broker's log, both from the
    response to its send; ``msg_id`` is its UNIQ_KEY.
    """

    CODE = request_code(37, "END_TRANSACTION")
    RIGHT = Right.SEND

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    from_transaction_check: bool | None = None
    msg_id: str
    transaction_id: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTransactionState(Request):
    """Ask a producer about the half message in the body. From a broker, one-way; ``EndTransaction`` answers."""

    CODE = request_code(39, "CHECK_TRANSACTION_STATE")
    BODY = "[a record](#stored-records)"

    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
