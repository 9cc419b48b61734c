"""TLS in front of a protocol: the server's context, the handshake of a connection, the names of a client.

A connection counts from the moment it is accepted, so that clients that never finish their handshake are limited like
all others; it becomes a ``Connection`` when the handshake is done.

Source: docs/operations.md, "TLS".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, cast

from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.serve.connection import Connection, peer_text
from metaq_broker.serve.host import Host

_LOG: Final = logging.getLogger(__name__)

SHUTDOWN_S: Final = 10.0
"""How long a closing connection waits for its client to read the rest and to close TLS."""

_VERIFY_MODES: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsKeys(Protocol):
    """The TLS part of a configuration; the paths are of PEM files, empty if there is none."""

    @property
    def tls_cert_file(self) -> str: ...
    @property
    def tls_key_file(self) -> str: ...
    @property
    def tls_client_ca_file(self) -> str: ...
    @property
    def tls_client_auth(self) -> str: ...


def server_context(system: TlsKeys) -> ssl.SSLContext | None:
    """Return the TLS context of connections, ``None`` without TLS. TLS 1.2 is the minimum.

    Raises:
        ConfigError: A file cannot be read, is not a PEM file, or they do not belong together.
    """
    if not system.tls_cert_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _AlertingObject
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_mode = _VERIFY_MODES[system.tls_client_auth]
    _load_certificate(context, system.tls_cert_file, system.tls_key_file)
    if system.tls_client_ca_file:
        _load_client_ca(context, system.tls_client_ca_file)
    return context


def _load_certificate(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    _check_readable("tlsCertFile", cert_file)
    _check_readable("tlsKeyFile", key_file)
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except _KeyEncrypted:
        raise ConfigError(
            "[system] tlsKeyFile", f"{key_file}: the key is encrypted; store it without a password, readable by few"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            what = f"{key_file}: the key does not belong to the certificate in {cert_file}"
        else:
            what = f"{cert_file} and {key_file} do not hold a certificate and its key in PEM format ({error.reason})"
        raise ConfigError("[system] tlsKeyFile", what) from None


def _load_client_ca(context: ssl.SSLContext, ca_file: str) -> None:
    _check_readable("tlsClientCaFile", ca_file)
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError as error:
        what = f"{ca_file} holds no certificates in PEM format ({error.reason})"
        raise ConfigError("[system] tlsClientCaFile", what) from None


def _check_readable(key: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"[system] {key}", f"{path} cannot be read: {error.strerror}") from None


class _KeyEncrypted(Exception):
    """The key needs a password."""


def _no_password() -> NoReturn:
    # Without this, OpenSSL would ask on the terminal, and a broker would wait there forever.
    raise _KeyEncrypted


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the names in a verified certificate of ``getpeercert``: common names and alternative names."""
    if not certificate:
        return frozenset()
    subject = (pair for relative in certificate.get("subject", ()) for pair in relative)
    common = (value for name, value in subject if name == "commonName")
    return frozenset((*common, *(value for _kind, value in certificate.get("subjectAltName", ()))))


_DESCRIPTOR: ContextVar[int] = ContextVar("_DESCRIPTOR", default=-1)
"""The socket of the connection that is being secured: asyncio makes the object below in the context of that task."""


class _AlertingObject(ssl.SSLObject):
    """Tells the client why its handshake failed. asyncio closes the connection without that."""

    outgoing: ssl.MemoryBIO
    descriptor: int

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *values: Any, **named: Any) -> Any:
        made = super()._create(incoming, outgoing, *values, **named)  # type: ignore[misc]
        made.outgoing, made.descriptor = outgoing, _DESCRIPTOR.get()
        return made

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.descriptor >= 0:
                with contextlib.suppress(OSError):  # it does not wait for a client that reads nothing
                    os.write(self.descriptor, self.outgoing.read())
            raise


class TlsHandshake(asyncio.Protocol):
    """An accepted client whose handshake is not done; replaces itself by a ``Connection``."""

    buffered_bytes = 0

    def __init__(self, server: Host, context: ssl.SSLContext) -> None:
        self._server = server
        self._context = context
        self._early: list[bytes] = []
        self._eof = self._lost = self._left = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it, and begin the handshake."""
        self._raw = cast(asyncio.Transport, transport)
        self.peer = peer_text(transport.get_extra_info("peername"))
        self._server.opened(self)
        if not self._raw.is_closing():
            self._task = self._server.loop.create_task(self._secure())

    async def _secure(self) -> None:
        timeout_s = self._server.limits.tls_handshake_timeout_ms / 1000
        _DESCRIPTOR.set(self._raw.get_extra_info("socket").fileno())
        try:
            # Nothing is read before: start_tls stops the reading in the same iteration in which the client was
            # accepted.
            secured = await self._server.loop.start_tls(
                self._raw,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:
            _LOG.info("TLS handshake failed", extra={"fields": {"peer": self.peer, "reason": _reason(error)}})
            self._raw.abort()
            self._leave()
            return
        if secured is None or self._lost:  # asyncio returns None if it was closed on this side
            self._leave()
        else:
            self._hand_over(secured)

    def _hand_over(self, secured: asyncio.Transport) -> None:
        connection = Connection(self._server)
        secured.set_protocol(connection)
        self._left = True
        self._server.replaced(self)
        connection.connection_made(secured)
        for data in self._early:
            connection.data_received(data)
        if self._eof:
            connection.eof_received()

    # ---- called by asyncio; the last bytes of a handshake may include the first command

    def data_received(self, data: bytes) -> None:
        """Buffer bytes that arrive before the connection is made."""
        self._early.append(data)

    def eof_received(self) -> None:
        """The client has closed TLS before the connection is made."""
        self._eof = True

    def connection_lost(self, _error: Exception | None) -> None:
        self._lost = True
        self._leave()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._server.closed(self)

    # ---- called by the server

    def finish(self) -> None:
        """Close: there is nothing to answer."""
        self.abort()

    def abort(self) -> None:
        self._raw.abort()

    def idle_since(self, _monotonic: float) -> bool:
        """Return ``False``: a handshake has a timeout of its own."""
        return False


_REASONS: Final = {
    "HTTP_REQUEST": "the client speaks HTTP without TLS",
    "WRONG_VERSION_NUMBER": "the client speaks no TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate",
}


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        detail = getattr(error, "verify_message", "")
        return f"{error.reason}: {detail}" if detail else _REASONS.get(error.reason, error.reason)
    return str(error) or type(error).__name__
