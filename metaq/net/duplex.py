"""A connected socket that one thread receives from while any number of threads send.

``Stream`` in ``metaq.net.transport`` is for one thread that sends a request and waits. Here requests are sent while
responses arrive. Sends are atomic: the bytes of two senders never mix. Each call has a timeout in seconds; a send that
times out after a part of its bytes closes the stream, because later bytes would be read as the rest. ``close`` is
thread-safe and ends calls in progress.

TLS has one state for both directions, so the two directions alternate for each piece that the socket sends or receives
at once; they wait for the socket without holding the state.
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

from metaq.errors import ConnectionFailed, DeadlineExceeded, TlsRefused, WrongServer
from metaq.model import Address, Buffer
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.tls import TlsSettings, TlsTransport, alert_text
from metaq.net.transport import map_exceptions, open_socket

if TYPE_CHECKING:
    import ssl

_SEND_BYTES: Final = 1 << 18
"""Bytes offered to the socket at once."""


class DuplexStream:
    """A plain connection. Errors name ``address``."""

    secured = False

    def __init__(self, connected: socket.socket, address: Address, clock: Clock = SYSTEM_CLOCK) -> None:
        connected.setblocking(False)
        self._socket, self._address, self._clock = connected, address, clock
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable.register(connected, select.POLLOUT)
        self._sending = threading.Lock()
        self._state = threading.Lock()  # guards the next two
        self._users = 0  # calls using the descriptor; the last one releases it after close
        self._closed = False

    def send(self, data: Buffer, timeout_s: float) -> None:
        """Send all of ``data``.

        Raises:
            DeadlineExceeded: It took longer. The stream is closed if a part of ``data`` was sent.
            ConnectionFailed: The connection is lost, or was closed on this side. ``recv_into`` may know the reason.
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
        """Receive into the front of ``buffer``; return the number of bytes, 0 = the peer has closed, ``None`` =
        timeout.

        Raises:
            ConnectionFailed: The connection is lost, or was closed on this side.
            TlsRefused: The server has refused this client's certificate.
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
        """Whether ``close`` was called; a close by the peer shows when sending or receiving."""
        return self._closed

    def close(self) -> None:
        """Close the connection and end calls in progress."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            if self._users:
                with suppress(OSError):  # wakes waiting threads; the last one releases the descriptor
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
        """Return how many bytes the socket accepted; 0: it is full."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _recv_some(self, buffer: memoryview) -> int | None:
        """Return how many bytes were received, 0 at the end, ``None`` if there are none yet."""
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None

    def _recv_available(self, buffer: memoryview) -> int | None:
        """Return bytes that were already read from the socket, with results as ``_recv_some``."""
        return None


class SecuredDuplexStream(DuplexStream):
    """A connection with TLS."""

    secured = True

    def __init__(self, secured: ssl.SSLSocket, address: Address, clock: Clock = SYSTEM_CLOCK) -> None:
        import ssl

        super().__init__(secured, address, clock)
        self._tls_socket, self._ssl_error = secured, ssl.SSLError
        self._tls = threading.Lock()
        self._wait = (ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def _send_some(self, data: memoryview) -> int:
        with self._tls:
            try:
                return self._tls_socket.send(data)
            except self._wait:
                return 0

    def _recv_some(self, buffer: memoryview) -> int | None:
        with self._tls:
            try:
                return self._tls_socket.recv_into(buffer)
            except self._wait:
                return None
            except self._ssl_error as error:
                if (reason := alert_text(error)) is not None:  # with TLS 1.3, after the handshake
                    raise TlsRefused(self._address, reason) from error
                raise

    def _recv_available(self, buffer: memoryview) -> int | None:
        return self._recv_some(buffer) if self._tls_socket.pending() else None


class TlsMode(Enum):
    """How a connection is secured.

    ``PERMISSIVE``: with TLS if the server supports it, else without; ``ENFORCED``: always with TLS. Neither verifies
    the server's certificate, as RocketMQ's clients by default: this protects against eavesdropping, not against
    impersonation. ``STRICT``: with TLS, and the certificate is checked.
    """

    PERMISSIVE = "permissive"
    ENFORCED = "enforced"
    STRICT = "strict"


@dataclass(frozen=True, slots=True)
class RemotingTls:
    """TLS of remoting connections. ``settings``: this client's certificate and, if strict, the trusted CAs."""

    mode: TlsMode = TlsMode.STRICT
    settings: TlsSettings = field(default_factory=TlsSettings)


class Connector(Protocol):
    """Opens streams; tests replace it."""

    def connect(self, address: Address, timeout_s: float) -> DuplexStream:
        """Open a stream to ``address``.

        Raises:
            ConnectionFailed: No server listens there, or TLS was refused.
            DeadlineExceeded: It took longer than ``timeout_s``.
        """


class PlainConnector:
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
    """Return a connector; without TLS for ``None``."""
    return PlainConnector() if tls is None else TlsConnector(tls)
