"""What only the broker's index or folder can tell about a partition, in one request each.

Message counts before an offset, the offset behind a count, and which incarnation of the partition an offset belongs to.
Without the extension a caller who needs counts walks the frames; nothing can stand in for an incarnation.

Source: docs/protocol.md, "ordinal" and "incarnation".
"""

from __future__ import annotations

import re
from typing import Final

from metaq.backends.metaq.fetch import GROUP
from metaq.backends.metaq.session import Session
from metaq.errors import ExtensionMissing
from metaq.protocols.text.commands import GetOffset, OffsetMode
from metaq.protocols.text.extensions import EXT_INCARNATION, EXT_ORDINAL

_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")
_NONE_YET: Final = "-"


def ordinal_at(session: Session, topic: str, partition_index: int, offset: int) -> int:
    """How many messages of the partition are before the frame boundary at or below ``offset``.

    Only differences mean something: between two offsets lie as many messages, quarantined ones counted. An ``offset``
    outside of what the partition holds counts as its start or its readable end.

    Raises:
        ExtensionMissing: The broker keeps no counts; walk the frames.
        BrokerError: 404 if the partition has no store, or another refusal.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    _require(session, EXT_ORDINAL, "counting messages")
    return lookup(session, topic, partition_index, offset, "ordinal")


def offset_of_message(session: Session, topic: str, partition_index: int, ordinal: int) -> int:
    """The byte offset of the message before which there are ``ordinal`` others, as ``ordinal_at`` counts.

    An ordinal before the first kept message gives the partition's start, one behind the last its readable end, and one
    inside damaged bytes the offset where those begin.

    Raises:
        ExtensionMissing: The broker keeps no counts; walk the frames.
        BrokerError: 404 if the partition has no store, or another refusal.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    _require(session, EXT_ORDINAL, "finding messages by their number")
    return lookup(session, topic, partition_index, ordinal, "message")


def reports_incarnations(session: Session) -> bool:
    """Whether the broker reports incarnations, of one partition and in ``stats incarnations``."""
    return EXT_INCARNATION in session.extensions


def incarnation(session: Session, topic: str, partition_index: int) -> str | None:
    """The partition's incarnation, 32 hex digits; ``None`` from a broker that does not report it.

    Also ``None`` before the broker could make it durable: just after a partition was made, or while its disk is full.

    Another one than before means that the partition was deleted and made anew: older offsets say nothing about it.

    Raises:
        BrokerError: 404 if the partition has no store, or another refusal.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    if not reports_incarnations(session):
        return None
    text = session.ask(GetOffset(topic, GROUP, partition_index, 0, 0, "incarnation"))
    if text == _NONE_YET:
        return None
    if not _INCARNATION.fullmatch(text):
        raise session.protocol_error(f"the answer to offset is {text[:40]!r}, no incarnation")
    return text


def lookup(session: Session, topic: str, partition_index: int, value: int, mode: OffsetMode) -> int:
    """Ask ``offset`` in one of its modes that are answered with a number; the caller has checked the extension.

    Raises:
        BrokerError: 404 if the partition has no store, or another refusal.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    text = session.ask(GetOffset(topic, GROUP, partition_index, value, 0, mode))
    try:
        return int(text)
    except ValueError:
        raise session.protocol_error(f"the answer to offset is {text[:40]!r}, no number") from None


def _require(session: Session, word: str, purpose: str) -> None:
    if word not in session.extensions:
        raise ExtensionMissing(session.address, word, purpose)
