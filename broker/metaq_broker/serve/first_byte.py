"""Connections of a port that serves clients with and without TLS: the first byte distinguishes them.

A TLS record of a handshake begins with 0x16. No other protocol here does: as the first byte of a remoting frame it
would announce more than 352 MiB. The byte is peeked at and left in the socket for the next owner of the connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import Final, cast

from metaq_broker.serve.connection import Connection, peer_text
from metaq_broker.serve.host import Host
from metaq_broker.serve.tls import TlsHandshake

TLS_HANDSHAKE: Final = 0x16


class FirstByte(asyncio.Protocol):
    """A client that has sent nothing yet; replaces itself by a ``TlsHandshake`` or a ``Connection``."""

    buffered_bytes = 0

    def __init__(self, server: Host, context: ssl.SSLContext) -> None:
        self._server, self._context = server, context
        self._began = server.loop.time()
        self._watched: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it, and wait for its first byte without reading it."""
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_text(transport.get_extra_info("peername"))
        self._server.opened(self)
        if self._transport.is_closing():
            return
        self._transport.pause_reading()  # this is called first, before anything is read
        # asyncio refuses to watch a transport's descriptor, but not a duplicate of it
        self._watched = os.dup(transport.get_extra_info("socket").fileno())
        self._server.loop.add_reader(self._watched, self._look)

    def _look(self) -> None:
        assert self._watched is not None
        with socket.socket(fileno=os.dup(self._watched)) as view:
            try:
                first = view.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return
            except OSError:
                first = b""
        self._stop_watching()
        if not first:
            self._transport.abort()
            return
        secured = first[0] == TLS_HANDSHAKE
        self._hand_over(TlsHandshake(self._server, self._context) if secured else Connection(self._server))

    def _hand_over(self, taking: TlsHandshake | Connection) -> None:
        self._transport.set_protocol(taking)
        self._server.replaced(self)
        taking.connection_made(self._transport)
        if isinstance(taking, Connection) and not self._transport.is_closing():
            self._transport.resume_reading()  # start_tls does it in the other case

    def connection_lost(self, _error: Exception | None) -> None:
        self._stop_watching()
        self._server.closed(self)

    def _stop_watching(self) -> None:
        if self._watched is not None:
            self._server.loop.remove_reader(self._watched)
            os.close(self._watched)
            self._watched = None

    # ---- called by the server

    def finish(self) -> None:
        """Close: there is nothing to answer."""
        self.abort()

    def abort(self) -> None:
        self._transport.abort()

    def idle_since(self, monotonic: float) -> bool:
        """Return whether it has sent nothing since ``monotonic``."""
        return self._began < monotonic
