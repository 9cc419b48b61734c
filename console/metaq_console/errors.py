"""Errors of a request: a status, a code for programs, a sentence for people. Errors of clients are mapped here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import ClientDisconnect

from metaq.errors import (
    BrokerError,
    ConnectionFailed,
    DeadlineExceeded,
    ExtensionMissing,
    MessageNotFound,
    MetaqError,
    OffsetMoved,
    StoreFailed,
    TopicNotFound,
)

SENTENCE_CHARS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """The body of every answer that is not a success."""

    code: str
    """A word for programs, such as ``topic_not_found``."""
    message: str
    """One sentence: what is wrong, where, and what is allowed."""
    retryable: bool
    """Whether the same request may succeed later."""


class RequestFailed(Exception):
    """A request cannot be answered: ``status`` of HTTP, and the body."""

    def __init__(self, status: int, code: str, message: str, *, retryable: bool = False) -> None:
        self.status = status
        self.body = ErrorBody(code=code, message=message[:SENTENCE_CHARS_MAX], retryable=retryable)
        super().__init__(status, code, message)

    def __str__(self) -> str:
        return self.body.message


_BY_CLASS: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (TopicNotFound, 404, "topic_not_found"),
    (MessageNotFound, 404, "message_not_found"),
    (OffsetMoved, 409, "offset_moved"),
    (ExtensionMissing, 409, "not_supported_by_broker"),
    (StoreFailed, 409, "store_failed"),
    (DeadlineExceeded, 504, "deadline_exceeded"),
    (ConnectionFailed, 502, "broker_away"),
    (BrokerError, 502, "broker_refused"),
)
"""Rows: an error of the clients, the status, the code; the first that matches counts."""


def disconnected() -> RequestFailed:
    """Return the failure of a request whose client does not wait for the answer: nobody reads it."""
    return RequestFailed(499, "client_gone", "the client closed the connection")


def failure_of(error: Exception) -> RequestFailed:
    """Return the failure for an error that a question raised: a client's, or a ``ValueError`` about a value in it."""
    if isinstance(error, RequestFailed):
        return error
    if isinstance(error, ClientDisconnect):
        return disconnected()
    for kind, status, code in _BY_CLASS:
        if isinstance(error, kind):
            return RequestFailed(status, code, str(error), retryable=bool(getattr(error, "retryable", False)))
    if isinstance(error, MetaqError):
        away = error.away
        return RequestFailed(502, "broker_away" if away else "cluster_error", str(error), retryable=error.retryable)
    if isinstance(error, ValueError | TypeError):
        return RequestFailed(409, "refused", str(error))
    return RequestFailed(500, "internal_error", f"internal error: {type(error).__name__}; the log has the details")
