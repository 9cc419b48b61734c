"""The interface between connections and protocols: a connection moves bytes, a session decodes and handles them.

A connection makes one session with its server's factory. The session puts its replies into the connection's reply
queue: in the order of the requests, or as they become ready, or unsolicited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from metaq.model import Buffer
from metaq_broker.serve.replies import ReplyQueue


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a connection. ``peer`` is its address, for the log.

    ``names``: from its certificate, ``None`` if clients need not show one.
    """

    peer: str
    names: frozenset[str] | None = None


class ConnectionLimits(Protocol):
    """Limits on connections; times in milliseconds. The broker's configuration has these fields."""

    @property
    def connections_max(self) -> int: ...
    @property
    def pipelined_requests_max(self) -> int: ...
    @property
    def output_bytes_max(self) -> int: ...
    @property
    def buffered_bytes_max(self) -> int: ...
    @property
    def idle_timeout_ms(self) -> int: ...
    @property
    def tls_handshake_timeout_ms(self) -> int: ...


@dataclass(slots=True)
class ConnectionCounts:
    """A server's connections now, and those that it has refused since its start."""

    connections: int = 0
    connections_refused: int = 0


class ReceivedBytes(Protocol):
    """The received bytes of a connection that are not carried out yet: a decoder."""

    @property
    def pending_bytes(self) -> int:
        """Their number."""

    @property
    def buffer(self) -> memoryview | None:
        """Where to receive the next bytes (then call ``buffer_filled``); ``None``: pass them to ``receive_data``."""

    def receive_data(self, chunk: Buffer, /) -> None:
        """Take received bytes, which are copied."""

    def buffer_filled(self, count: int, /) -> None:
        """Record that ``count`` bytes were received into ``buffer``."""


class ServerSession(Protocol):
    """One client's conversation in one protocol."""

    protocol: str
    """``METAQ`` or ``ROCKETMQ``, as in ``foreign``."""

    expects_block: bool
    """Whether the next request most likely has a large body."""

    @property
    def decoder(self) -> ReceivedBytes:
        """Where received bytes go."""

    @property
    def finished(self) -> bool:
        """Whether no further request will be carried out."""

    def handle(self, requests_max: int, quantum_over: Callable[[], bool]) -> bool:
        """Carry out up to ``requests_max`` requests, until ``quantum_over``; return whether more may be left."""

    def connection_lost(self) -> None:
        """Release everything that belongs to the connection."""


SessionFactory = Callable[[ReplyQueue, Client], ServerSession]
