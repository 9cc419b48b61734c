"""Puts: one message, or one block of messages.

A put is acknowledged when the broker has stored it as the topic's settings promise (by default: on disk). After
``ConnectionFailed`` and ``DeadlineExceeded`` it is unknown whether the message was stored; a retry may store it twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from metaq.backends.metaq.session import Session
from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_body, encode_frame, walk
from metaq.model import Buffer, Message, TransactionId
from metaq.protocols.text.commands import Put, PutBatch
from metaq.protocols.text.extensions import EXT_PUT_BATCH


class Receipt(NamedTuple):
    """Id and byte offset of the (first) stored message; the offset is -1 inside a transaction."""

    message_id: int
    partition_index: int
    offset: int


def put(
    session: Session, topic: str, partition_index: int, message: Message, transaction: TransactionId | None = None
) -> Receipt:
    """Store one message, with its checksum; with ``partition_index`` -1 the broker chooses the partition.

    Raises:
        BrokerError: The broker refuses: unknown topic or partition (500), closed partition (403).
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed; the message may be stored or not.
        TypeError: ``message`` is not a ``Message``.
        ValueError: The topic or the attribute is not valid. Nothing was sent.
    """
    flag, body = encode_body(message)
    command = Put(topic, partition_index, body, flag, 0, checksum(body), transaction)
    return parse_receipt(session, session.ask(command))


def takes_blocks(session: Session) -> bool:
    """Whether the broker stores a block as one command, all or nothing."""
    return EXT_PUT_BATCH in session.extensions


def encode_block(messages: Iterable[Message]) -> tuple[bytes, int]:
    """Return the messages as ``(block, count)`` for ``put_batch``: frames back to back, without ids."""
    frames = [encode_frame(0, *encode_body(message)) for message in messages]
    return b"".join(frames), len(frames)


def put_batch(
    session: Session,
    topic: str,
    partition_index: int,
    block: bytes,
    count: int,
    transaction: TransactionId | None = None,
) -> Receipt:
    """Store a block of ``count`` (>= 1) whole frames in order; return the receipt of the first.

    One command if the broker supports it: all or nothing. Otherwise one put after the other, each waiting for its
    reply, because a Java broker does not keep the order of pipelined puts; after an error, earlier messages stay
    stored.

    Raises:
        CorruptFrame: The block is not as ``encode_block`` makes it (detected only when it is split).
        BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError, ValueError: As ``put``.
    """
    receipts = [
        parse_receipt(session, session.ask(command))
        for command in block_commands(session, topic, partition_index, block, count, transaction)
    ]
    return receipts[0]


def block_commands(
    session: Session, topic: str, partition_index: int, block: Buffer, count: int, transaction: TransactionId | None
) -> list[Put] | list[PutBatch]:
    """Return the commands that store a block: one ``mput``, or without it a ``put`` for each frame.

    Raises:
        ValueError: The block is empty, or does not have ``count`` whole frames (detected only when it is split).
    """
    if count < 1:
        raise ValueError(f"count={count}: expected a block of at least one frame")
    if takes_blocks(session):
        return [PutBatch(topic, partition_index, block, count, 0, transaction)]
    frames = list(walk(block, where="the block to put"))
    if len(frames) != count or frames[-1].end != len(block):
        raise ValueError(f"count={count}: the block of {len(block)} bytes has {len(frames)} whole frames")
    return [Put(topic, partition_index, frame.body, frame.flag, 0, frame.checksum, transaction) for frame in frames]


def parse_receipt(session: Session, text: str) -> Receipt:
    """Parse ``MSGID PARTITION OFFSET``.

    Raises:
        ProtocolError: The text has another form; the session is closed.
    """
    try:
        message_id, partition_index, offset = map(int, text.split(" "))
    except ValueError:
        raise session.protocol_error(f"the answer to put is {text[:60]!r}, not id, partition and offset") from None
    return Receipt(message_id, partition_index, offset)
