"""Connections to brokers: the only place in this package that creates sockets.

``Transport`` and ``Stream`` are the interface. ``TCP`` is the real one, and ``metaq.net.tls`` has one with TLS;
``metaq.testing`` has a scripted one and one for a broker in memory. Every call that may wait takes a timeout in
seconds, and foreign exceptions are mapped to ``MetaqError``.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  # else the first look-up of a name imports it, and a fork meanwhile would hang
import select
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import ceil
from typing import Final, Protocol, TypeVar

from metaq.errors import ConnectionFailed, DeadlineExceeded
from metaq.model import INT32_MAX, Address, Buffer
from metaq.net.clock import SYSTEM_CLOCK
from metaq.net.loopback import disable_pacing

A = TypeVar("A")
R = TypeVar("R")

_MORE: Final = getattr(socket, "MSG_MORE", 0)  # without it, a small packet is sent ahead


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, in seconds: for a connection, and for the whole of one request with its reply."""

    connect_s: float = 5.0
    request_s: float = 30.0

    def __post_init__(self) -> None:
        for name, value in (("connect_s", self.connect_s), ("request_s", self.request_s)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}={value}: expected a number of seconds above 0")

    @property
    def all_tries_s(self) -> float:
        """Longest wait of a caller, including all retries."""
        return max(self.connect_s, self.request_s)


DEFAULT_TIMEOUTS: Final = Timeouts()


class Stream(Protocol):
    """One connection, both directions.

    ``send`` and ``recv`` raise ``DeadlineExceeded`` after ``timeout_s`` (> 0) and ``ConnectionFailed`` when the
    connection is lost or was closed on this side. After either, it is unknown how much was transferred: close the
    stream.
    """

    def send(self, data: Buffer, timeout_s: float, *, more: bool = False) -> None:
        """Send all of ``data``; ``timeout_s`` bounds the whole call.

        ``more``: more data follows at once, so the network may wait for it.
        """

    def recv(self, bytes_max: int, timeout_s: float) -> bytes:
        """Return 1 to ``bytes_max`` bytes, as soon as there are any; empty when the peer has closed its side."""

    def recv_into(self, buffer: memoryview, timeout_s: float) -> int:
        """Receive into the front of ``buffer`` (writable, not empty); return the number of bytes, 0 = the peer has
        closed.
        """

    def readable(self) -> bool:
        """Whether ``recv`` would return at once, with bytes or with the end. Never waits."""

    def close(self) -> None:
        """Close this process's descriptor. Sends nothing, so a forked child can drop its parent's connection safely."""


class Transport(Protocol):
    """Opens streams."""

    def connect_tcp(self, address: Address, timeout_s: float) -> Stream:
        """Open a stream to ``address``.

        Raises:
            ConnectionFailed: No server listens there, or the name does not resolve.
            DeadlineExceeded: No answer within ``timeout_s``, for each address of the host name. Resolving the name
                takes as long as the system's resolver is configured to.
        """


@contextmanager
def map_exceptions(address: Address, action: str, timeout_s: float) -> Iterator[None]:
    """Map exceptions of ``socket`` to this package's errors, with the peer and the action."""
    try:
        yield
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        raise mapped(error, address, action, timeout_s) from error


def mapped(
    error: OSError | UnicodeError, address: Address, action: str, timeout_s: float
) -> DeadlineExceeded | ConnectionFailed:
    """Return this package's error for an exception of ``socket``, with the peer and the action."""
    if isinstance(error, TimeoutError):
        return DeadlineExceeded(address, action, timeout_s)
    return ConnectionFailed(address, action, reason_of(error))


def reason_of(error: Exception) -> str:
    """Return the system's text of an error."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class TcpStream:
    """A connected TCP socket. Public only for its type; made by ``TCP.connect_tcp``."""

    def __init__(self, connected: socket.socket, address: Address) -> None:
        self._socket = connected
        self._address = address
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    def send(self, data: Buffer, timeout_s: float, *, more: bool = False) -> None:
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(data, _MORE if more else 0)
        except OSError as error:
            raise mapped(error, self._address, "send", timeout_s) from error

    def recv(self, bytes_max: int, timeout_s: float) -> bytes:
        return self._receive(self._socket.recv, bytes_max, timeout_s)

    def recv_into(self, buffer: memoryview, timeout_s: float) -> int:
        return self._receive(self._socket.recv_into, buffer, timeout_s)

    def _receive(self, receive: Callable[[A], R], where: A, timeout_s: float) -> R:
        """Receive available data before waiting: after each system call a thread waits for the interpreter.

        A socket with a timeout would poll first.
        """
        deadline_s: float | None = None
        try:
            if self._socket.gettimeout() != 0:
                self._socket.settimeout(0)
            while True:
                try:
                    return receive(where)
                except BlockingIOError:
                    now_s = SYSTEM_CLOCK.monotonic()
                    deadline_s = now_s + timeout_s if deadline_s is None else deadline_s
                    left_ms = min(ceil((deadline_s - now_s) * 1000), INT32_MAX)
                    if left_ms <= 0 or not self._poll.poll(left_ms):
                        raise TimeoutError from None
        except OSError as error:
            raise mapped(error, self._address, "receive", timeout_s) from error

    def readable(self) -> bool:
        # poll, not select: a process with many files open has descriptors above select's limit.
        return self._socket.fileno() < 0 or bool(self._poll.poll(0))

    def close(self) -> None:
        self._socket.close()


class TcpTransport:
    """TCP connections, with small packets sent at once."""

    def connect_tcp(self, address: Address, timeout_s: float) -> Stream:
        return TcpStream(open_socket(address, timeout_s), address)


def resolve(address: Address) -> list[str]:
    """Resolve the host name of ``address``, in the order in which connecting tries the results.

    Raises:
        ConnectionFailed: It does not resolve. The system's resolver determines how long that takes.
    """
    with map_exceptions(address, "look up the name", 0):
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


def open_socket(address: Address, timeout_s: float) -> socket.socket:
    """Return a connected socket that sends small packets at once. Raises as ``Transport.connect_tcp``."""
    with map_exceptions(address, "connect", timeout_s):
        connected = socket.create_connection((address.host, address.port), timeout_s)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            disable_pacing(connected)
        except BaseException:  # the connection may have ended already
            connected.close()
            raise
    return connected


TCP: Final[Transport] = TcpTransport()


def own_ip() -> str:
    """Return an address of this machine that others may reach, else ``127.0.0.1``. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: only the route is looked up
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def is_own(address: Address) -> bool:
    """Return whether ``address`` belongs to this machine, by binding a socket to it. Opens no connection."""
    try:
        family, _, _, _, where = socket.getaddrinfo(address.host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(where)
    except (OSError, UnicodeError):
        return False
    return True


def refuses(address: Address, timeout_s: float) -> bool:
    """Return whether connections to ``address`` are refused; false for other errors and timeouts."""
    try:
        with socket.create_connection((address.host, address.port), timeout_s):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def first_answer(address: Address, request: bytes, timeout_s: float) -> bytes:
    """Send ``request`` over a new connection, and return the first bytes of the answer; empty if the connection is
    closed instead.

    Connecting and the answer may take ``timeout_s`` each. Raises as ``Transport.connect_tcp``.
    """
    with (
        map_exceptions(address, "ask", timeout_s),
        socket.create_connection((address.host, address.port), timeout_s) as connection,
    ):
        connection.sendall(request)
        return connection.recv(1024)


def share_server(some: Iterable[Address], others: Iterable[Address]) -> bool:
    """Return whether two lists of addresses have a server in common, even under different names.

    A name that cannot be resolved is only equal to itself.
    """
    return not _endpoints(some).isdisjoint(_endpoints(others))


def _endpoints(addresses: Iterable[Address]) -> set[tuple[str, int]]:
    found = {(address.host, address.port) for address in addresses}
    for host, port in list(found):
        with suppress(OSError):
            found.update((str(name[0]), port) for *_, name in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return found
