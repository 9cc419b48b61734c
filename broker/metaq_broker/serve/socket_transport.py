"""Transports of connections without TLS, small enough for very many idle ones.

They do what asyncio's own do for a ``BufferedProtocol``, with much less memory: 10,000 idle connections take 15 MiB
instead of 27. All of them are in one epoll, which the event loop watches like a single file. Systems without epoll use
asyncio's transports.

Any unsent byte counts as a full buffer: the protocol is told to pause, and to resume when all bytes are sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from typing import Any, Final

from metaq_broker.loop_step import LoopStep

IN: Final[int] = getattr(select, "EPOLLIN", 1)
OUT: Final[int] = getattr(select, "EPOLLOUT", 4)

EVENTS_MAX: Final = 256
"""Limit on sockets that are served before the loop turns to other work."""


class SocketWatch:
    """Sockets that are watched for a server. Used on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll = select.epoll()
        self._transports: dict[int, SocketTransport] = {}
        loop.add_reader(self._epoll.fileno(), LoopStep.of(loop).run, self._serve)

    @staticmethod
    def is_supported() -> bool:
        """Return whether this system supports it."""
        return hasattr(select, "epoll")

    @property
    def transports(self) -> list[SocketTransport]:
        return list(self._transports.values())

    def connect(self, connected: socket.socket, protocol: asyncio.BufferedProtocol) -> None:
        """Make the transport of an accepted socket, and connect it to ``protocol``."""
        connected.setblocking(False)
        with contextlib.suppress(OSError):  # if it is closed already, reading will show it
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = SocketTransport(self, connected, protocol)
        try:
            protocol.connection_made(transport)
        except Exception as error:
            transport.failed(error)
        transport.resume_reading()

    def close(self) -> None:
        """Stop watching; the transports have been closed before."""
        if not self._epoll.closed:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def change(self, transport: SocketTransport, descriptor: int, before: int, events: int) -> None:
        """Watch a socket for ``events``, 0 for none; ``before`` are the current events."""
        if not events:  # epoll reports errors of a socket whatever events are requested
            del self._transports[descriptor]
            self._epoll.unregister(descriptor)
        elif before:
            self._epoll.modify(descriptor, events)
        else:
            self._transports[descriptor] = transport
            self._epoll.register(descriptor, events)

    def _serve(self) -> None:
        """Handle the events of sockets that are ready."""
        for descriptor, happened in self._epoll.poll(0, EVENTS_MAX):
            transport = self._transports.get(descriptor)
            if transport is not None:  # otherwise a transport served before has ended it
                transport.ready(happened)


class SocketTransport(asyncio.Transport):
    __slots__ = ("_closing", "_events", "_lost", "_paused", "_protocol", "_socket", "_unsent", "_watch")

    def __init__(self, watch: SocketWatch, connected: socket.socket, protocol: asyncio.BufferedProtocol) -> None:
        self._watch, self._socket = watch, connected
        self._protocol: asyncio.BufferedProtocol = protocol
        self._unsent: bytearray | None = None
        self._events = 0
        self._paused = True
        self._closing = self._lost = False

    def __repr__(self) -> str:
        return f"<SocketTransport {self._socket}, {'closing' if self._closing else 'open'}>"

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``peername``, ``sockname`` or ``socket``; others do not exist."""
        with contextlib.suppress(OSError):  # it is closed
            if name == "peername":
                return self._socket.getpeername()
            if name == "sockname":
                return self._socket.getsockname()
        return self._socket if name == "socket" else default

    # ---- reading

    def is_reading(self) -> bool:
        """Return whether arriving bytes are received."""
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self._watch_for(self._events & ~IN)

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            self._watch_for(self._events | IN)

    def ready(self, events: int) -> None:
        """Handle events: the socket has bytes, has space, or is closed."""
        try:
            if events & ~OUT and self._events & IN:
                self._receive()
            if events & ~IN and self._events & OUT:
                self._send_rest()
        except Exception as error:
            self.failed(error)

    def _receive(self) -> None:
        try:
            size = self._socket.recv_into(self._protocol.get_buffer(-1))
        except (BlockingIOError, InterruptedError):
            return
        if size:
            self._protocol.buffer_updated(size)
        elif self._protocol.eof_received():
            self.pause_reading()
        else:
            self.close()

    # ---- writing

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes."""
        return 0 if self._unsent is None else len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limits are 0, and there are no others."""
        if high or low:
            raise ValueError(f"limits of {high} and {low} bytes: only 0 is possible")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``; bytes that the socket does not accept are kept and sent later."""
        if self._lost or not data:
            return
        if self._unsent is not None:
            self._unsent += data
            return
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.failed(error)
            return
        if sent < len(data):
            self._unsent = bytearray(memoryview(data)[sent:])
            self._watch_for(self._events | OUT)
            self._protocol.pause_writing()

    def _send_rest(self) -> None:
        assert self._unsent is not None
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        if sent < len(self._unsent):
            del self._unsent[:sent]
            return
        self._unsent = None
        self._watch_for(self._events & ~OUT)
        if self._closing:
            self._end(None)
        else:
            self._protocol.resume_writing()

    # ---- the end

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Send nothing more; arriving bytes are still received. Not allowed while there are unsent bytes."""
        if self._unsent is not None:
            raise RuntimeError(f"{len(self._unsent)} bytes are not sent yet")
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.failed(error)

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or being closed."""
        return self._closing

    def close(self) -> None:
        """Close the connection when everything is sent."""
        if not self._closing:
            self._closing = True
            self._watch_for(self._events & ~IN)
            if self._unsent is None:
                self._end(None)

    def abort(self) -> None:
        self._closing, self._unsent = True, None
        self._watch_for(0)
        self._end(None)

    def failed(self, error: Exception) -> None:
        """Close the connection because of an error; an error that is not the socket's is reported."""
        if not isinstance(error, OSError):
            context = {"message": "a connection failed", "exception": error, "transport": self}
            self._watch.loop.call_exception_handler(context)
        self._closing, self._unsent = True, None
        self._watch_for(0)
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        # Not at once: the protocol may be in the middle of its work.
        if not self._lost:
            self._lost = True
            self._watch.loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()
            del self._protocol  # it has a reference to this object

    def _watch_for(self, events: int) -> None:
        if events != self._events:
            before, self._events = self._events, events
            self._watch.change(self, self._socket.fileno(), before, events)
