"""Requests that another program made, passed on as they are: the reply is the broker's, refusals included.

Source: docs/protocol.md (put, get, offset, stats).
"""

from __future__ import annotations

from dataclasses import dataclass

from metaq.backends.metaq.session import Session
from metaq.protocols.text.commands import Command, Get, GetOffset, Put, Stats, Value
from metaq.statuses import OK


@dataclass(frozen=True, slots=True)
class Relayed:
    """A broker's reply: MetaQ's status code, and the text or the message bytes after it."""

    code: int
    body: bytes


def relay_put(session: Session, topic: str, partition: int, flag: int, body: bytes, checksum: int) -> Relayed:
    """Pass on a put; ``partition`` -1 lets the broker choose, ``checksum`` -1 means that there is none.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed; the message may be stored or not.
        ValueError: A value cannot be encoded. Nothing was sent.
    """
    return _pass_on(session, Put(topic, partition, body, flag, 0, checksum))


def relay_get(session: Session, topic: str, group: str, partition: int, offset: int, bytes_max: int) -> Relayed:
    """Pass on a get; the body of a success is a slice of the partition's bytes. Raises as ``relay_put``."""
    return _pass_on(session, Get(topic, group, partition, offset, bytes_max, 0))


def relay_offset(session: Session, topic: str, group: str, partition: int, offset: int) -> Relayed:
    """Pass on an offset. Raises as ``relay_put``."""
    return _pass_on(session, GetOffset(topic, group, partition, offset, 0))


def relay_stats(session: Session, item: str) -> Relayed:
    """Pass on a ``stats``. Raises as ``relay_put``."""
    return _pass_on(session, Stats(item, 0))


def _pass_on(session: Session, command: Command) -> Relayed:
    reply = session.call(command)
    if isinstance(reply, Value):
        return Relayed(OK, bytes(reply.data))
    return Relayed(reply.code, reply.text.encode("utf-8", "surrogateescape"))
