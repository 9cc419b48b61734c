"""What HTTP access needs, checked before the broker accepts clients: packages, a port, a token, files for TLS."""

from __future__ import annotations

import importlib.util
import socket
import ssl
from pathlib import Path
from typing import Final

from metaq.errors import MetaqError
from metaq_broker.operate.config.http import HttpConfig
from metaq_broker.serve.server import bind

PACKAGES: Final = ("starlette", "uvicorn", "jinja2")
TOKEN_CHARS_MIN: Final = 16
BACKLOG: Final = 128
"""Connections that wait while the process starts, or starts again."""


class HttpUnavailable(MetaqError):
    """HTTP access is configured and cannot be served; the text says what to do."""


def listen(config: HttpConfig) -> socket.socket:
    """Return a socket that listens for HTTP clients, which the process inherits.

    Raises:
        HttpUnavailable: A package or a file is missing or wrong, or the port is taken.
    """
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        advice = 'pip install "metaq-spark[console]", or set enabled=false in [http]'
        raise HttpUnavailable(f"[http] port={config.port} needs the package {missing[0]}: {advice}")
    _check_token(config.token_file)
    _check_tls(config)
    try:
        listener = bind(config.bind_address, config.port)
    except OSError as error:
        where = f"cannot listen on {config.bind_address} port {config.port} for HTTP ([http] port)"
        raise HttpUnavailable(f"{where}: {error.strerror or error}; choose another one (0 = any free port)") from error
    listener.listen(BACKLOG)
    return listener


def _check_token(file: str) -> None:
    if not file:
        return
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise HttpUnavailable(f"[http] tokenFile={file} cannot be read: {reason}") from error
    if len(token) < TOKEN_CHARS_MIN:
        allowed = f"expected {TOKEN_CHARS_MIN} or more"
        raise HttpUnavailable(f"[http] tokenFile={file} has a token of {len(token)} characters; {allowed}")


def _check_tls(config: HttpConfig) -> None:
    if not config.tls_cert_file:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert_file, config.tls_key_file or None)
    except OSError as error:  # of which ssl.SSLError is one
        files = f"tlsCertFile={config.tls_cert_file}" + (
            f", tlsKeyFile={config.tls_key_file}" if config.tls_key_file else ""
        )
        raise HttpUnavailable(f"[http] {files} cannot be used: {error.strerror or error}") from error
