"""Lookups in a partition's index or folder, in one request each.

The number of messages before an offset, the offset after a number of messages, and the incarnation that an offset
belongs to. Without the extension a caller that needs counts walks the frames; an incarnation has no substitute.

Source: docs/protocol.md, "ordinal" and "incarnation".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from metaq.backends.metaq.fetch import GROUP
from metaq.backends.metaq.session import Session, call_all
from metaq.errors import BrokerError, ExtensionMissing
from metaq.model import INT64_MAX, OffsetRange, PartitionState, TopicPartition
from metaq.protocols.text.commands import GetOffset, OffsetMode
from metaq.protocols.text.extensions import EXT_INCARNATION, EXT_ORDINAL
from metaq.statuses import NOT_FOUND

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

    An ordinal before the first stored message yields the partition's start, one after the last the readable end, and
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
    return _incarnation(session, session.ask(GetOffset(topic, GROUP, partition_index, 0, 0, "incarnation")))


def lookup(session: Session, topic: str, partition_index: int, value: int, mode: OffsetMode) -> int:
    """Ask ``offset`` in a mode with a numeric answer; the caller has checked the extension.

    Raises:
        BrokerError: 404 if the partition has no store, or another refusal.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    return _number(session, session.ask(GetOffset(topic, GROUP, partition_index, value, 0, mode)))


def states_of(session: Session, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionState]:
    """Return the readable range and the incarnation of each partition that is stored. The requests are pipelined.

    Raises:
        BrokerError: A refusal other than 404.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    modes: list[tuple[int, OffsetMode]] = [(0, "segment"), (INT64_MAX, "segment")]
    if reports_incarnations(session):
        modes.append((0, "incarnation"))
    wanted = list(partitions)
    commands = [
        GetOffset(topic, GROUP, partition.index, value, 0, mode) for topic, partition in wanted for value, mode in modes
    ]
    replies = iter(zip(call_all(session, commands), commands, strict=True))
    found = {}
    for where in wanted:
        answers = [next(replies) for _ in modes]
        try:
            start, end, *incarnations = [session.text_of(reply, command) for reply, command in answers]
        except BrokerError as error:
            if error.code != NOT_FOUND:  # it has no messages yet
                raise
            continue
        found[where] = PartitionState(
            OffsetRange(_number(session, start), _number(session, end)),
            _incarnation(session, incarnations[0]) if incarnations else None,
        )
    return found


def _number(session: Session, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise session.protocol_error(f"the answer to offset is {text[:40]!r}, not a number") from None


def _incarnation(session: Session, text: str) -> str | None:
    if text == _NONE_YET:
        return None
    if not _INCARNATION.fullmatch(text):
        raise session.protocol_error(f"the answer to offset is {text[:40]!r}, not an incarnation")
    return text


def _require(session: Session, word: str, purpose: str) -> None:
    if word not in session.extensions:
        raise ExtensionMissing(session.address, word, purpose)
