"""A single ``get``: a slice of raw bytes of a partition, or why there is none.

Source: docs/protocol.md (get). Only codes matter, not texts: 301 moved, 404 nothing there (yet).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metaq.backends.metaq.session import Session
from metaq.protocols.text.commands import Get, Reply, Value
from metaq.statuses import MOVED, NOT_FOUND

GROUP: Final = "metaq-spark"
"""Consumer group of this client's requests. A broker uses it for statistics and for filters configured for the name."""


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of a partition from ``offset`` on."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class AtEnd:
    """Nothing at ``offset``: the readable end, or a partition without messages. ``text`` is the broker's."""

    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Nothing at the requested offset; continue at ``offset``."""

    offset: int


def fetch(
    session: Session, topic: str, partition_index: int, offset: int, max_bytes: int, group: str = GROUP
) -> Run | AtEnd | Moved:
    """Return up to ``max_bytes`` (>= 1) raw bytes from ``offset``: not aligned to frames, never across segments.

    A broker may send fewer (its ``maxTransferSize``, default 1 MiB); complete a cut frame with a request at
    ``Run.end``.

    Raises:
        BrokerError: Any other refusal, for example 403 for a closed partition.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    command = Get(topic, group, partition_index, offset, max_bytes, 0)
    return read_outcome(session, command, session.call(command))


def read_outcome(session: Session, command: Get, reply: Reply) -> Run | AtEnd | Moved:
    """Return the meaning of ``reply`` to ``command``; for callers that pipeline. Raises as ``fetch``."""
    if isinstance(reply, Value):
        if len(reply.data) > command.max_bytes:
            raise session.protocol_error(f"{len(reply.data)} bytes in reply to a get of {command.max_bytes}")
        return Run(command.offset, reply.data) if reply.data else AtEnd(command.offset, "an empty value")
    if reply.code == NOT_FOUND:
        return AtEnd(command.offset, reply.text)
    if reply.code == MOVED:
        return Moved(_offset_in(session, reply.text))
    session.text_of(reply, command)
    raise session.protocol_error("a get was answered with 200 and a text")


def _offset_in(session: Session, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise session.protocol_error(f"moved (301) to {text[:40]!r}, which is not an offset") from None
