"""Requests about the consumer groups that a bundled broker keeps. Source: docs/protocol.md, "group"."""

from __future__ import annotations

from metaq.backends.metaq.session import Session
from metaq.errors import BrokerError, MetaqError
from metaq.model import Address
from metaq.protocols.text.commands import GroupRequest
from metaq.protocols.text.extensions import EXT_GROUP
from metaq.protocols.text.group_bodies import (
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    GroupBody,
    LocalPartition,
    StoredOffset,
    decode_body,
    encode_body,
)
from metaq.protocols.text.group_bodies import offset_rows as offset_rows
from metaq.statuses import CONFLICT, FAILED, NOT_FOUND, UNAVAILABLE

__all__ = [
    "ConsumerIdTaken",
    "GroupBody",
    "LocalPartition",
    "NotNow",
    "StoredOffset",
    "ask_group",
    "check_session",
    "keeps_groups",
]


class NotNow(MetaqError):
    """``who`` cannot do it now, for ``reason``."""

    retryable = True

    def __init__(self, who: object, reason: str) -> None:
        self.who, self.reason = who, reason
        super().__init__(who, reason)

    def __str__(self) -> str:
        return f"{self.who}: {self.reason}"


class ConsumerIdTaken(MetaqError):
    """The broker at ``address`` knows another consumer with this id."""

    def __init__(self, address: Address, reason: str) -> None:
        self.address, self.reason = address, reason
        super().__init__(address, reason)

    def __str__(self) -> str:
        return f"broker {self.address}: {self.reason}"


def ask_group(session: Session, action: str, group: str, **fields: object) -> GroupBody:
    """Ask a broker that keeps groups.

    Raises:
        ConsumerIdTaken: Another consumer has the id.
        NotNow: The broker cannot do it now.
        BrokerError: It refuses for another reason.
    """
    try:
        return decode_body(session.ask(GroupRequest(action, group, encode_body(**fields), 0)))
    except BrokerError as error:
        if error.code == CONFLICT:
            raise ConsumerIdTaken(session.address, error.text) from None
        if error.code in (NOT_FOUND, FAILED, UNAVAILABLE):
            raise NotNow(f"broker {session.address}", error.text) from None
        raise


def keeps_groups(session: Session) -> bool:
    """Whether the session's broker keeps consumer groups."""
    return EXT_GROUP in session.extensions


def check_session(session_s: float) -> None:
    """Check the option ``session_s`` of a consumer.

    Raises:
        ValueError: Brokers that keep groups would refuse it.
    """
    if not SESSION_MS_MIN <= round(session_s * 1000) <= SESSION_MS_MAX:
        least, most = SESSION_MS_MIN / 1000, SESSION_MS_MAX // 1000
        raise ValueError(f"session_s {session_s!r}: expected {least:g} to {most} seconds for a list of brokers")
