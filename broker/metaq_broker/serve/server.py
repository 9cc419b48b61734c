"""Listens for the clients of one protocol, keeps the list of connections, closes idle ones and, at the end, all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Collection
from typing import Final

from metaq_broker.log.files.open_files import OpenFiles
from metaq_broker.loop_step import LoopStep
from metaq_broker.serve.acceptor import Acceptor
from metaq_broker.serve.connection import Connection
from metaq_broker.serve.fair_queue import FairQueue
from metaq_broker.serve.first_byte import FirstByte
from metaq_broker.serve.host import CountedClient
from metaq_broker.serve.session import ConnectionCounts, ConnectionLimits, SessionFactory
from metaq_broker.serve.socket_transport import SocketWatch
from metaq_broker.serve.tls import TlsHandshake, names_of

_LOG: Final = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 1 << 18
"""Bytes received from a connection at once, unless they belong to a block."""

RECEIVE_BYTES_LOW: Final = 1 << 15
"""The same while all connections together buffer a quarter of their limit."""

SWEEP_INTERVAL_S_MAX: Final = 15.0
"""Longest time between two checks for idle connections, in seconds."""


def bind(host: str, port: int, *, lingering: bool = True) -> socket.socket:
    """Return a socket bound to ``host`` and ``port`` (0 = a free one), which accepts no connection yet.

    ``lingering``: also a port with connections that a server before has closed. Then a port to which another program is
    bound that does not listen yet counts as free, too, and the second one to listen fails.

    Raises:
        OSError: The address cannot be used, for example because the port is taken.
    """
    [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, lingering)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


class Server:
    """Listening sockets and their connections, secured by ``tls`` if given; with ``tls_optional``, clients may connect
    without it.

    ``sessions`` makes each connection's session; ``partition_count`` returns how many partitions need open files.
    """

    def __init__(
        self,
        sessions: SessionFactory,
        limits: ConnectionLimits,
        counts: ConnectionCounts,
        partition_count: Callable[[], int],
        tls: ssl.SSLContext | None = None,
        *,
        tls_optional: bool = False,
    ) -> None:
        self._tls, self._tls_optional = tls, tls_optional
        self._counts = counts
        self._partition_count = partition_count
        self.sessions = sessions
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self._connections: set[CountedClient] = set()
        self._files = OpenFiles.of_process()
        self.queue: Final = FairQueue.of(self.loop)
        self.step: Final = LoopStep.of(self.loop)
        self._whole: Final = memoryview(bytearray(RECEIVE_BYTES))
        self.received = self._whole
        """Where connections receive. What is there is copied in the same turn of the loop, so one serves all."""
        self._buffered_bytes = 0
        self._acceptors: list[Acceptor] = []
        self._sockets: SocketWatch | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self, *listeners: socket.socket) -> None:
        """Accept clients on sockets of ``bind``, which belong to the server from now on.

        Raises:
            OSError: Another program listens there now.
        """
        if self._tls is None and SocketWatch.is_supported():
            self._sockets = SocketWatch(self.loop)
        self._acceptors = [
            Acceptor(self.loop, each, self._client, self._free_slots, self._refused, self._sockets)
            for each in listeners
        ]
        try:
            for acceptor in self._acceptors:
                acceptor.start()
        except OSError:
            self._close_sockets()
            raise
        if self.connections_max < self.limits.connections_max:
            fields = {"maxConnections": self.limits.connections_max, "connections": self.connections_max}
            _LOG.warning("the limit of open files allows fewer connections", extra={"fields": fields})
        self._schedule_sweep()

    async def stop(self, patience_s: float) -> None:
        """Stop accepting, answer received requests, close. Replies not read within ``patience_s`` are lost."""
        if self._sweep is not None:
            self._sweep.cancel()
        for acceptor in self._acceptors:
            acceptor.stop()
        for connection in list(self._connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), patience_s)
        for connection in list(self._connections):
            _LOG.warning("connection closed at shutdown", extra={"fields": {"peer": connection.peer}})
            connection.abort()
        await self._empty.wait()
        self._close_sockets()

    def abort(self) -> None:
        """Accept no more connections, and close all connections at once, without the replies that wait."""
        acceptors, self._acceptors = self._acceptors, []
        for acceptor in acceptors:
            acceptor.stop()
        for connection in list(self._connections):
            connection.abort()

    def _close_sockets(self) -> None:
        if self._sockets is not None:
            self._sockets.close()

    def _free_slots(self) -> int:
        known: Collection[object] = self._connections
        arriving = sum(each not in known for acceptor in self._acceptors for each in acceptor.arriving)
        return self.connections_max - len(self._connections) - arriving

    def _refused(self) -> None:
        self._counts.connections_refused += 1

    def _client(self) -> asyncio.BaseProtocol:
        if self._tls is None:
            return Connection(self)
        return FirstByte(self, self._tls) if self._tls_optional else TlsHandshake(self, self._tls)

    def names_of(self, transport: asyncio.BaseTransport) -> frozenset[str] | None:
        """Return the names in a client's certificate; ``None`` if it need not show one."""
        if self._tls is None or self._tls.verify_mode == ssl.CERT_NONE:
            return None
        return names_of(transport.get_extra_info("peercert"))

    @property
    def connections_max(self) -> int:
        """The current limit of connections."""
        fit = self._files.connections_max(self._partition_count())
        return min(self.limits.connections_max, fit)

    def opened(self, connection: CountedClient) -> None:
        self._connections.add(connection)
        self._empty.clear()
        self._count()

    def holds(self, connection: CountedClient, buffered_bytes: int) -> None:
        """Record how many bytes a connection buffers. Above the common limit, the largest connections are aborted."""
        self._buffered_bytes += buffered_bytes - connection.buffered_bytes
        connection.buffered_bytes = buffered_bytes
        while self._buffered_bytes > self.limits.buffered_bytes_max:
            largest = max(self._connections, key=lambda each: each.buffered_bytes, default=None)
            if largest is None or not largest.buffered_bytes:
                break  # only connections that are being closed are left
            fields = {
                "peer": largest.peer,
                "bytes": largest.buffered_bytes,
                "maxBufferedBytes": self.limits.buffered_bytes_max,
            }
            _LOG.warning("connection closed, all connections buffer too many bytes", extra={"fields": fields})
            self._buffered_bytes -= largest.buffered_bytes
            largest.buffered_bytes = 0
            largest.abort()
        are_many = self._buffered_bytes > self.limits.buffered_bytes_max // 4
        self.received = self._whole[:RECEIVE_BYTES_LOW] if are_many else self._whole

    def replaced(self, connection: CountedClient) -> None:
        """A handshake is done; its connection opens at once."""
        self._connections.discard(connection)

    def closed(self, connection: CountedClient) -> None:
        self._connections.discard(connection)
        self._count()
        if not self._connections:
            self._empty.set()

    def _count(self) -> None:
        self._counts.connections = len(self._connections)

    def _schedule_sweep(self) -> None:
        interval_s = min(self.limits.idle_timeout_ms / 4000, SWEEP_INTERVAL_S_MAX)
        self._sweep = self.loop.call_later(interval_s, self._close_idle)

    def _close_idle(self) -> None:
        limit = self.loop.time() - self.limits.idle_timeout_ms / 1000
        for connection in [each for each in self._connections if each.idle_since(limit)]:
            _LOG.info("idle connection closed", extra={"fields": {"peer": connection.peer}})
            connection.abort()
        self._schedule_sweep()
