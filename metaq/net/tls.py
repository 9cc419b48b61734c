"""Secured connections to brokers: a transport for ``Session`` and ``SessionPool``.

::

    pool = SessionPool(transport=TlsTransport(TlsSettings(ca_file="ca.pem")))

``ssl`` is imported on first use: every process imports ``TlsSettings`` for its options, but few use TLS.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from metaq.errors import ConnectionFailed, DeadlineExceeded, TlsRefused, WrongServer
from metaq.model import Address, Buffer
from metaq.net.identification import ACCEPTS_S, IDENTIFY_S, SILENT_S, TLS, accepts_tls, identify
from metaq.net.transport import A, R, Stream, TcpStream, map_exceptions, mapped, open_socket, reason_of

if TYPE_CHECKING:
    import ssl

_NAMES: Final = ("DNS", "IP Address")
ALERT_S: Final = 0.2
"""Seconds to wait for a server's alert after it has closed a connection."""
_PEEK_BYTES: Final = 1 << 14
"""Largest TLS record."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS settings; paths of PEM files.

    ``ca_file`` has the trusted CAs of brokers (default: the system's). ``cert_file`` and ``key_file`` are for brokers
    that require client certificates; the key may be in ``cert_file``. Without ``check_hostname`` any certificate signed
    by the CA is accepted, for any host; without ``verify`` any certificate.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    check_hostname: bool = True
    verify: bool = True

    def __post_init__(self) -> None:
        if self.check_hostname and not self.verify:
            raise ValueError("verify=False: expected check_hostname=False; without verification, names are not checked")
        if self.key_file is not None and self.cert_file is None:
            raise ValueError(f"key_file={self.key_file}: expected cert_file as well")

    def context(self) -> ssl.SSLContext:
        """Load the files.

        Raises:
            ValueError: A file cannot be used; the error says which and why.
        """
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise ValueError(f"ca_file={self.ca_file} cannot be used: {reason_of(error)}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
            except OSError as error:
                files = f"cert_file={self.cert_file}, key_file={self.key_file or self.cert_file}"
                raise ValueError(f"{files} cannot be used: {reason_of(error)}") from None
        return context


def _no_password() -> NoReturn:
    # Without this OpenSSL would ask on the terminal.
    raise OSError("the key is encrypted; store it without a password")


class TlsStream(TcpStream):
    """A connected TLS socket; made by ``TlsTransport.connect_tcp``."""

    def __init__(self, secured: ssl.SSLSocket, address: Address) -> None:
        super().__init__(secured, address)
        self._secured = secured
        self._available = b""
        self._ended = False

    def send(self, data: Buffer, timeout_s: float, *, more: bool = False) -> None:
        try:
            super().send(data, timeout_s)  # a TLS socket supports no flags
        except ConnectionFailed:
            with suppress(ConnectionFailed, DeadlineExceeded):
                self._receive(self._secured.recv, 1, ALERT_S)  # with TLS 1.3 an alert may explain why it has closed
            raise

    def recv(self, bytes_max: int, timeout_s: float) -> bytes:
        if self._available:
            data, self._available = self._available[:bytes_max], self._available[bytes_max:]
            return data
        return b"" if self._ended else super().recv(bytes_max, timeout_s)

    def recv_into(self, buffer: memoryview, timeout_s: float) -> int:
        if not (self._available or self._ended):
            return super().recv_into(buffer, timeout_s)
        data = self.recv(len(buffer), timeout_s)
        buffer[: len(data)] = data
        return len(data)

    def _receive(self, receive: Callable[[A], R], where: A, timeout_s: float) -> R:
        """Receive available data, or wait: the TLS socket knows whether it must read or write for that."""
        try:
            self._secured.settimeout(timeout_s)
            return receive(where)
        except OSError as error:
            if (reason := alert_text(error)) is not None:  # with TLS 1.3, after the handshake
                raise TlsRefused(self._address, reason) from error
            raise mapped(error, self._address, "receive", timeout_s) from error

    def readable(self) -> bool:
        if self._available or self._ended or self._secured.fileno() < 0:
            return True
        if not self._secured.pending() and not super().readable():
            return False
        import ssl

        # What arrived may be part of TLS itself (session tickets, keys): only reading shows that.
        try:
            self._secured.settimeout(0)
            self._available = self._secured.recv(_PEEK_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            self._ended = True
            return True
        self._ended = not self._available
        return True


@dataclass(frozen=True, slots=True)
class Certificate:
    """A server's certificate: its names, its expiry (ms since 1970), and the version of TLS.

    Without ``verify`` names are empty and the time is ``None``, because the certificate was not checked.
    """

    names: tuple[str, ...]
    not_after_ms: int | None
    protocol: str


class TlsTransport:
    """TLS connections: the broker's certificate is verified, the client's sent if there is one. Can be pickled.

    Raises:
        ValueError: A file of ``settings`` cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        self._context = settings.context()

    def __reduce__(self) -> tuple[type[TlsTransport], tuple[TlsSettings]]:
        return TlsTransport, (self.settings,)

    def connect_tcp(self, address: Address, timeout_s: float) -> Stream:
        return TlsStream(self.connect_secured(address, timeout_s), address)

    def connect_secured(self, address: Address, timeout_s: float) -> ssl.SSLSocket:
        """Return a connected socket with TLS. Raises as ``Transport.connect_tcp``."""
        connected = open_socket(address, timeout_s)
        try:
            with map_exceptions(address, "secure the connection", timeout_s):
                return self._secured(connected, address, timeout_s)
        except BaseException:
            connected.close()
            raise

    def certificate(self, address: Address, timeout_s: float) -> Certificate:
        """Connect, and return the server's certificate. Raises as ``Transport.connect_tcp``."""
        import ssl

        with self.connect_secured(address, timeout_s) as secured:
            shown: dict[str, Any] = secured.getpeercert() or {}
            names = tuple(str(name) for kind, name in shown.get("subjectAltName", ()) if kind in _NAMES)
            until = None if "notAfter" not in shown else int(ssl.cert_time_to_seconds(shown["notAfter"])) * 1000
            return Certificate(names, until, secured.version() or "")

    def _secured(self, connected: Any, address: Address, timeout_s: float) -> ssl.SSLSocket:
        import ssl

        host = address.host
        connected.getpeername()  # wrap_socket leaves a socket open that the peer has reset
        secured = self._context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
        try:
            self._shake_hands(secured, address, timeout_s)
        except BaseException as error:
            secured.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                reason = f"the broker's certificate is not trusted: {error.verify_message}"
                raise TlsRefused(address, reason) from error
            if isinstance(error, OSError):
                _require_tls(address)
                if (alert := alert_text(error)) is not None:
                    raise TlsRefused(address, alert) from error
            raise
        return secured

    def _shake_hands(self, secured: ssl.SSLSocket, address: Address, timeout_s: float) -> None:
        """Perform the handshake. A server that does not answer for a while is identified."""
        secured.settimeout(min(SILENT_S, timeout_s))
        try:
            secured.do_handshake()
        except TimeoutError:
            if timeout_s < SILENT_S + IDENTIFY_S + ACCEPTS_S:
                raise
            _require_tls(address)
            secured.settimeout(timeout_s - SILENT_S)
            secured.do_handshake()


def _require_tls(address: Address) -> None:
    """Identify a server after a failed handshake.

    A server that accepts both, as RocketMQ's by default, may have been starting or frozen during the handshake.

    Raises:
        WrongServer: It uses no TLS.
    """
    found = identify(address)
    if found is not None and found != TLS and not accepts_tls(address):
        raise WrongServer(address, TLS, f"{found} without TLS")


_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "the server requires a certificate of the client (cert_file)",
    "UNKNOWN_CA": "the server does not trust the CA of this client's certificate",
    "CERTIFICATE_EXPIRED": "this client's certificate has expired",
    "BAD_CERTIFICATE": "the server does not accept this client's certificate",
    "CERTIFICATE_UNKNOWN": "the server does not accept this client's certificate",
    "HANDSHAKE_FAILURE": "no TLS version or cipher in common with the server, or it requires a client certificate",
}


def alert_text(error: OSError) -> str | None:
    """Return the reason in the server's TLS alert; ``None`` if there was none."""
    reason = getattr(error, "reason", None) or ""
    return next((text for alert, text in _ALERTS.items() if alert in reason and "ALERT" in reason), None)
