"""Connections between the members of a pair, as the driver sees them: bytes of messages, in order, in both directions.

``text/pair_link.py`` and ``text/session.py`` implement both ends over MetaQ's text protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from metaq.model import Address, Buffer


class OutgoingLink(Protocol):
    """A connection that this member opened, as the master."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Send a message, which is in parts; it is kept until the connection takes it. Does nothing once the connection
        is lost.
        """

    async def drain(self) -> None:
        """Return when the connection takes more."""

    def close(self) -> None:
        """Close the connection; nothing more is reported."""


OnMessage = Callable[[bytes], None]
OnLost = Callable[[str], None]
"""Called once, with the reason."""


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Seconds: ``answer_s`` for a connection and the answer to a ping, ``ping_s`` between two pings."""

    answer_s: float
    ping_s: float


OpenLink = Callable[[Address, LinkTimes, OnMessage, OnLost], Awaitable[OutgoingLink]]
"""Connects to the other member. Raises ``PeerLost``, or ``PeerRefused`` if it is not a member of a pair."""


class IncomingLink(Protocol):
    """A connection that the other member opened."""

    def send(self, content: bytes) -> None: ...

    def close(self) -> None: ...


class LinkEnd(Protocol):
    """What the driver made of an incoming connection."""

    def received(self, content: Buffer) -> None:
        """Take a message. Its memory is used for others when this returns."""

    def lost(self) -> None:
        """The connection has ended."""


class MemberPort(Protocol):
    """A member of a pair, as the sessions of clients see it."""

    @property
    def refusal(self) -> str | None:
        """Why clients are not served; ``None`` at the master."""

    def opened(self, link: IncomingLink) -> LinkEnd:
        """Take a connection of the other member."""
