"""Lookups in a partition's index or folder, in one request each.

The number of messages before an offset, the offset after a number of messages, and the incarnation that an offset
belongs to. Without the extension a caller that needs counts walks the frames; an incarnation has no substitute.

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
    """Return how many messages of the partition precede the frame boundary at or below ``offset``.

    Only differences are meaningful: they are the number of messages between two offsets, including quarantined ones. An
    ``offset`` outside the stored range counts as its start or the readable end.

    Raises:
        ExtensionMissing: The broker keeps no counts; walk the frames.
        BrokerError: 404 if the partition has no store, or another refusal.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    _require(session, EXT_ORDINAL, "counting messages")
    return lookup(session, topic, partition_index, offset, "ordinal")


def offset_of_message(session: Session, topic: str, partition_index: int, ordinal: int) -> int:
    """Return the byte offset of the message with number ``ordinal``, as ``ordinal_at`` counts.

    An ordinal before the first stored message yields the partition's start, one behind the last the readable end, and
    one inside damaged bytes the offset where these begin.

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
    """Return the partition's incarnation, 32 hex digits; ``None`` from a broker that does not report it.

    Also ``None`` until the broker has made it durable: just after the partition was created, or while its disk is full.

    Another incarnation than before means that the partition was deleted and created again: older offsets are not valid.

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
        raise session.protocol_error(f"the answer to offset is {text[:40]!r}, not an incarnation")
    return text


def lookup(session: Session, topic: str, partition_index: int, value: int, mode: OffsetMode) -> int:
    """Ask ``offset`` in a mode with a numeric answer; the caller has checked the extension.

    Raises:
        BrokerError: 404 if the partition has no store, or another refusal.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    text = session.ask(GetOffset(topic, GROUP, partition_index, value, 0, mode))
    try:
        return int(text)
    except ValueError:
        raise session.protocol_error(f"the answer to offset is {text[:40]!r}, not a number") from None


def _require(session: Session, word: str, purpose: str) -> None:
    if word not in session.extensions:
        raise ExtensionMissing(session.address, word, purpose)
