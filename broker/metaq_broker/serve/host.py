"""What connections, and clients that are not one yet, need of their server, and what it needs of them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from metaq_broker.serve.fair_queue import FairQueue
from metaq_broker.serve.session import Limits, SessionFactory


class Peer(Protocol):
    """A client that counts as a connection. ``buffered_bytes`` of input and output wait in it."""

    peer: str
    buffered_bytes: int

    def finish(self) -> None:
        """Answer what was received, take nothing more, then close."""

    def abort(self) -> None:
        """Close at once."""

    def idle_since(self, monotonic: float, /) -> bool:
        """Say whether nothing happened since ``monotonic`` (loop time)."""


class Host(Protocol):
    """What a connection needs of its server."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def sessions(self) -> SessionFactory: ...

    @property
    def queue(self) -> FairQueue: ...

    @property
    def received(self) -> memoryview:
        """Where connections receive what is copied at once."""

    def names_of(self, transport: asyncio.BaseTransport) -> frozenset[str] | None:
        """Return the names in a client's certificate, ``None`` where it need not show one."""

    def opened(self, connection: Peer) -> None:
        """Note a new connection."""

    def closed(self, connection: Peer) -> None:
        """Note that a connection is gone."""

    def replaced(self, connection: Peer) -> None:
        """Note that a handshake is done; its connection opens at once."""

    def holds(self, connection: Peer, buffered_bytes: int) -> None:
        """Note how many bytes wait in a connection."""
