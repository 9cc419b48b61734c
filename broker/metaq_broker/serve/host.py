"""The interfaces between a server and its connections, including clients that are not connections yet."""

from __future__ import annotations

import asyncio
from typing import Protocol

from metaq_broker.loop_step import LoopStep
from metaq_broker.serve.fair_queue import FairQueue
from metaq_broker.serve.session import ConnectionLimits, SessionFactory


class CountedClient(Protocol):
    """A client that counts as a connection. ``buffered_bytes`` are its buffered input and output."""

    peer: str
    buffered_bytes: int

    def finish(self) -> None:
        """Answer received requests, read no more, then close."""

    def abort(self) -> None: ...

    def idle_since(self, monotonic: float, /) -> bool:
        """Return whether it was idle since ``monotonic`` (loop time)."""


class Host(Protocol):
    """The server, as a connection needs it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def limits(self) -> ConnectionLimits: ...

    @property
    def sessions(self) -> SessionFactory: ...

    @property
    def queue(self) -> FairQueue: ...

    @property
    def step(self) -> LoopStep: ...

    @property
    def received(self) -> memoryview:
        """The buffer in which connections receive bytes that are copied at once."""

    def names_of(self, transport: asyncio.BaseTransport) -> frozenset[str] | None:
        """Return the names in a client's certificate; ``None`` if it need not show one."""

    def opened(self, connection: CountedClient) -> None: ...

    def closed(self, connection: CountedClient) -> None: ...

    def replaced(self, connection: CountedClient) -> None:
        """A handshake is done; its connection opens at once."""

    def holds(self, connection: CountedClient, buffered_bytes: int) -> None:
        """Record the number of bytes buffered in a connection."""
