"""One ``get``: a raw slice of a partition, or the reason why there is none.

Source: docs/protocol.md (get). Codes decide, never texts: 301 moved, 404 nothing there (yet).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from metaq.backends.metaq.session import Session
from metaq.errors import ProtocolError
from metaq.protocols.text.commands import Command, Get, Reply, Value

GROUP: Final = "metaq-spark"
"""Consumer group of this client's requests. A broker uses it for statistics and for filters set up for that name."""


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of a partition from ``offset`` on."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class AtEnd:
    """Nothing at ``offset``: the readable end, or a partition that nobody has written to. ``text`` is the broker's."""

    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Nothing at the offset asked for; go on at ``offset``."""

    offset: int


class Conversation(Protocol):
    """What reading a reply needs of the session that it came over, sync or asyncio."""

    def text_of(self, reply: Reply, command: Command) -> str: ...

    def protocol_error(self, what: str) -> ProtocolError: ...


def fetch(
    session: Session, topic: str, partition_index: int, offset: int, max_bytes: int, group: str = GROUP
) -> Run | AtEnd | Moved:
    """Up to ``max_bytes`` (>= 1) raw bytes from ``offset``: not aligned to frames, never across segments.

    A broker may send fewer (its ``maxTransferSize``, default 1 MiB); a frame that is cut is completed by asking on at
    ``Run.end``.

    Raises:
        BrokerError: Any other refusal, for example 403 for a closed partition.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    command = Get(topic, group, partition_index, offset, max_bytes, 0)
    return read_outcome(session, command, session.call(command))


def read_outcome(session: Conversation, command: Get, reply: Reply) -> Run | AtEnd | Moved:
    """What ``reply`` says about ``command``; for callers that pipeline. Raises as ``fetch``."""
    if isinstance(reply, Value):
        if len(reply.data) > command.max_bytes:
            raise session.protocol_error(f"{len(reply.data)} bytes in reply to a get of {command.max_bytes}")
        return Run(command.offset, reply.data) if reply.data else AtEnd(command.offset, "an empty value")
    if reply.code == 404:
        return AtEnd(command.offset, reply.text)
    if reply.code == 301:
        return Moved(_offset_in(session, reply.text))
    session.text_of(reply, command)
    raise session.protocol_error("a get was answered with 200 and a text")


def _offset_in(session: Conversation, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise session.protocol_error(f"moved (301) to {text[:40]!r}, which is no offset") from None
