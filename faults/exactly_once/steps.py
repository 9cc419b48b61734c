"""The steps of the sink's protocol, as seen on the wire, and the moments at which one can be interrupted."""

from __future__ import annotations

from enum import Enum
from typing import Final

from metaq.model import TransactionId, Xid
from metaq.protocols.text.commands import Command, Decide, Oversized, Put, PutBatch, TransactionCommand


class Step(Enum):
    """The role of a request in the protocol. The value is its name in schedules and logs."""

    BEGIN = "begin"
    PUT = "put"
    PREPARE = "prepare"
    DECIDE = "decide"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    RECOVER = "recover"


class Moment(Enum):
    """When the victim is killed, relative to the request that triggers it."""

    BEFORE = "before"
    """The request has not reached the broker, and never will."""
    UNANSWERED = "unanswered"
    """The broker has carried it out, and its reply is lost."""
    AFTER = "after"
    """The reply has been passed on to the client."""


_OF_TRANSACTION: Final = {
    "BEGIN": Step.BEGIN,
    "PREPARE": Step.PREPARE,
    "COMMIT_ONE_PHASE": Step.COMMIT,
    "COMMIT_TWO_PHASE": Step.COMMIT,
    "ROLLBACK": Step.ROLLBACK,
    "RECOVER": Step.RECOVER,
}


def step_of(command: Command | Oversized) -> Step | None:
    """Return the step of a request; ``None`` for reads and lookups."""
    match command:
        case Put() | PutBatch():
            return Step.PUT
        case Decide():
            return Step.DECIDE
        case TransactionCommand():
            return _OF_TRANSACTION.get(command.type)
        case _:
            return None


def described(command: Command | Oversized) -> str:
    """Return a request in one line, without payloads, for the log."""
    match command:
        case Put() | PutBatch():
            return f"put {command.topic} {command.partition} {_name(command.transaction)}".rstrip()
        case Decide():
            return f"decide {command.query_id} {command.batch_id}: {' '.join(map(_name, command.branches))}"
        case TransactionCommand():
            return f"{command.type} {_name(command.key) or command.unique or ''}".rstrip()
        case _:
            return type(command).__name__


def _name(key: TransactionId | None) -> str:
    """Return a key with its parts as text, not in hexadecimal."""
    if isinstance(key, Xid):
        return f"{key.global_id.decode(errors='replace')}:{key.branch.decode(errors='replace')}"
    return str(key or "")
