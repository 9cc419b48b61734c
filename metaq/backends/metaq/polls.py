"""Gets for many partitions of one broker in one round trip, as a consumer polls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metaq.backends.metaq.fetch import AtEnd, Moved, Run, read_outcome
from metaq.backends.metaq.filtered import Filtered
from metaq.backends.metaq.session import Session, call_all
from metaq.errors import BrokerError, CorruptFrame, ProtocolError
from metaq.formats.message_types import decode_filtered
from metaq.protocols.text.commands import Get, GetFiltered, Reply, Value
from metaq.protocols.text.extensions import EXT_FILTER


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """Up to ``max_bytes`` of a partition from ``offset`` on; only messages of ``types`` if the broker can filter."""

    topic: str
    index: int
    offset: int
    max_bytes: int
    group: str
    types: tuple[str, ...] = ()

    def command(self, extensions: frozenset[str]) -> Get | GetFiltered:
        """Return the command for a broker with ``extensions``."""
        if self.types and EXT_FILTER in extensions:
            return GetFiltered(self.topic, self.group, self.index, self.offset, self.max_bytes, self.types, 0)
        return Get(self.topic, self.group, self.index, self.offset, self.max_bytes, 0)


Polled = Run | Filtered | AtEnd | Moved | BrokerError | CorruptFrame
"""The outcome of one request. An error concerns only its partition."""


def poll_all(session: Session, requests: Sequence[PartitionRequest]) -> list[Polled]:
    """Send all ``requests`` before waiting for the first reply; return the outcomes in order.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    commands = [request.command(session.extensions) for request in requests]
    replies = call_all(session, commands)
    return [read_polled(session, command, reply) for command, reply in zip(commands, replies, strict=True)]


def read_polled(session: Session, command: Get | GetFiltered, reply: Reply) -> Polled:
    """Return the meaning of ``reply`` to ``command``.

    Raises:
        ProtocolError: It cannot be parsed; the session is closed.
    """
    try:
        if isinstance(command, GetFiltered) and isinstance(reply, Value):
            return _read_filtered(session, command, reply)
        plain = Get(command.topic, command.group, command.partition, command.offset, command.max_bytes, 0)
        return read_outcome(session, plain, reply)
    except (BrokerError, CorruptFrame) as error:
        return error


def _read_filtered(session: Session, command: GetFiltered, reply: Value) -> Filtered:
    try:
        next_offset, frames = decode_filtered(reply.data)
    except ProtocolError as fault:
        raise session.protocol_error(fault.what) from None
    if next_offset <= command.offset:
        raise session.protocol_error(f"a filtered get at {command.offset} continues at {next_offset}")
    return Filtered(frames, next_offset)
