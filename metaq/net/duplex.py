"""A connected socket that one thread receives from while any number of threads send.

``Stream`` in ``metaq.net.transport`` is for one thread that asks and waits. Here requests go out while responses come
in. Sends are whole: the bytes of two senders never mix. Each call has a timeout in seconds; a send that ran out of time
with a part of its bytes sent closes the stream, as what follows would be read as the rest. ``close`` may be called by
any thread and ends the calls that are under way.

TLS keeps one state for both directions, so with it the two directions take turns for each piece that the socket takes
or gives at once, and wait for the socket without the state.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from metaq.errors import ConnectionFailed, DeadlineExceeded, WrongServer
from metaq.model import Address, Buffer
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.tls import TlsSettings, TlsTransport
from metaq.net.transport import map_exceptions, open_socket

if TYPE_CHECKING:
    import ssl

_SEND_BYTES: Final = 1 << 18
"""Bytes offered to the socket at once."""


class DuplexStream:
    """``address`` is named in errors."""

    def __init__(self, connected: socket.socket, address: Address, clock: Clock = SYSTEM_CLOCK) -> None:
        connected.setblocking(False)
        self._socket, self._address, self._clock = connected, address, clock
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable.register(connected, select.POLLOUT)
        self._sending = threading.Lock()
        self._state = threading.Lock()  # guards the two below
        self._users = 0  # calls that use the descriptor; the last of them releases it after close
        self._closed = False

    def send(self, data: Buffer, timeout_s: float) -> None:
        """Hand all of ``data`` to the network.

        Raises:
            DeadlineExceeded: It took longer. The stream is closed unless nothing of ``data`` was taken.
            ConnectionFailed: The connection is lost, or was closed on this side.
        """
        deadline = self._clock.monotonic() + timeout_s
        if not self._sending.acquire(timeout=timeout_s):
            raise DeadlineExceeded(self._address, "send", timeout_s)
        try:
            with self._used("send", timeout_s):
                self._send_all(memoryview(data), deadline)
        finally:
            self._sending.release()

    def _send_all(self, data: memoryview, deadline: float) -> None:
        sent = 0
        while sent < len(data):
            taken = self._send_some(data[sent : sent + _SEND_BYTES])
            sent += taken
            if taken == 0 and not self._writable.poll(self._left_ms(deadline)):
                if sent:
                    self.close()
                raise TimeoutError

    def recv_into(self, buffer: memoryview, timeout_s: float) -> int | None:
        """Receive into the front of ``buffer``: how many bytes, 0 = the peer has closed, ``None`` = none in time.

        Raises:
            ConnectionFailed: The connection is lost, or was closed on this side.
        """
        deadline = self._clock.monotonic() + timeout_s
        with self._used("receive", timeout_s):
            if (size := self._recv_available(buffer)) is not None:
                return size
            while self._readable.poll(self._left_ms(deadline)):
                if (size := self._recv_some(buffer)) is not None:
                    return size
                if self._clock.monotonic() >= deadline:
                    break
        return None

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called here; what the peer did is found out by sending or receiving."""
        return self._closed

    def close(self) -> None:
        """End the connection and all calls that are under way."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            if self._users:
                with suppress(OSError):  # wakes who waits for the socket; the last of them releases it
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            else:
                self._socket.close()

    @contextmanager
    def _used(self, action: str, timeout_s: float) -> Iterator[None]:
        with self._state:
            if self._closed:
                raise ConnectionFailed(self._address, action, "the connection was closed on this side")
            self._users += 1
        try:
            with map_exceptions(self._address, action, timeout_s):
                yield
        finally:
            with self._state:
                self._users -= 1
                if self._closed and not self._users:
                    self._socket.close()

    def _left_ms(self, deadline: float) -> int:
        return max(0, int((deadline - self._clock.monotonic()) * 1000 + 0.999))

    def _send_some(self, data: memoryview) -> int:
        """Return how many bytes the socket took; 0: it is full."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _recv_some(self, buffer: memoryview) -> int | None:
        """Return how many bytes there were, 0 at the end, ``None`` if there are none yet."""
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None

    def _recv_available(self, buffer: memoryview) -> int | None:
        """Return as ``_recv_some`` what was received from the socket already, before waiting for it."""
        return None


class SecuredDuplexStream(DuplexStream):
    """The same over TLS."""

    def __init__(self, secured: ssl.SSLSocket, address: Address, clock: Clock = SYSTEM_CLOCK) -> None:
        import ssl

        super().__init__(secured, address, clock)
        self._secured = secured
        self._tls = threading.Lock()
        self._wait = (ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def _send_some(self, data: memoryview) -> int:
        with self._tls:
            try:
                return self._secured.send(data)
            except self._wait:
                return 0

    def _recv_some(self, buffer: memoryview) -> int | None:
        with self._tls:
            try:
                return self._secured.recv_into(buffer)
            except self._wait:
                return None

    def _recv_available(self, buffer: memoryview) -> int | None:
        return self._recv_some(buffer) if self._secured.pending() else None


class TlsMode(Enum):
    """How a connection is secured.

    ``PERMISSIVE``: with TLS if the server takes it, else without; ``ENFORCED``: always with TLS. Neither looks at the
    server's certificate, as RocketMQ's clients do not by default: that keeps out who listens, not who pretends to
    be the server. ``STRICT``: with TLS, and the certificate is checked.
    """

    PERMISSIVE = "permissive"
    ENFORCED = "enforced"
    STRICT = "strict"


@dataclass(frozen=True, slots=True)
class RemotingTls:
    """TLS of remoting connections. ``settings``: what is shown to the server, and, if strict, whom to trust."""

    mode: TlsMode = TlsMode.STRICT
    settings: TlsSettings = field(default_factory=TlsSettings)


class Connector(Protocol):
    """Makes streams; tests replace it."""

    def connect(self, address: Address, timeout_s: float) -> DuplexStream:
        """A new stream to ``address``.

        Raises:
            ConnectionFailed: Nobody listens there, or TLS was refused.
            DeadlineExceeded: It took longer than ``timeout_s``.
        """


class PlainConnector:
    """Connections without TLS."""

    def connect(self, address: Address, timeout_s: float) -> DuplexStream:
        return DuplexStream(open_socket(address, timeout_s), address)


class TlsConnector:
    """Connections with TLS, as ``tls`` says.

    Raises:
        ValueError: A file of the settings cannot be used.
    """

    def __init__(self, tls: RemotingTls) -> None:
        self._mode = tls.mode
        strict = tls.mode is TlsMode.STRICT
        settings = tls.settings if strict else replace(tls.settings, verify=False, check_hostname=False)
        self._transport = TlsTransport(settings)

    def connect(self, address: Address, timeout_s: float) -> DuplexStream:
        deadline = SYSTEM_CLOCK.monotonic() + timeout_s
        try:
            return SecuredDuplexStream(self._transport.connect_secured(address, timeout_s), address)
        except (ConnectionFailed, WrongServer) as error:
            is_there = isinstance(error, WrongServer) or error.action != "connect"
            if self._mode is not TlsMode.PERMISSIVE or not is_there:
                raise
        left_s = max(0.001, deadline - SYSTEM_CLOCK.monotonic())
        return DuplexStream(open_socket(address, left_s), address)


def connector(tls: RemotingTls | None) -> Connector:
    """Return what makes connections: without TLS for ``None``."""
    return PlainConnector() if tls is None else TlsConnector(tls)
