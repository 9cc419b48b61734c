"""Runs the console until a signal stops it: the socket, TLS, and the HTTP server below the application."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from metaq_console.app import create_app
from metaq_console.connection import BoundedConnection
from metaq_console.console import make_console
from metaq_console.settings import ConsoleSettings, SettingsError

BACKLOG: Final = 128
CONNECTIONS_MAX: Final = 200
"""Requests and connections at a time; further ones are answered with 503."""
KEEP_ALIVE_S: Final = 30
STOP_S: Final = 5
"""How long a stop waits for answers."""
HEAD_BYTES_MAX: Final = 64 << 10
LOWER_PRIORITY: Final = 10
"""Added to the niceness: where a broker of this machine wants the processor, too, puts go first."""


def listen(settings: ConsoleSettings) -> socket.socket:
    """Return a socket that listens at the host and port.

    Raises:
        SettingsError: The port is taken, or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        where = f"port {settings.port} on {settings.host}"
        if isinstance(error, socket.gaierror) or error.strerror is None:
            raise SettingsError(f"host {settings.host!r}: {error.strerror or error}") from None
        raise SettingsError(f"{where}: {error.strerror}; choose another one (0 = any free port)") from None
    return listener


def serve(
    settings: ConsoleSettings,
    listener: socket.socket,
    announce: Callable[[str], None] = lambda address: None,
    *,
    with_parent: bool = False,
) -> None:
    """Serve at ``listener`` until SIGTERM or SIGINT; ``announce`` is called with the address when it is ready.

    It runs at a lower priority than what started it. ``with_parent``: only as long as that lives, until the standard
    input ends.

    Raises:
        SettingsError: The cluster has no known form, or a file for TLS cannot be used.
    """
    try:
        app = create_app(make_console(settings))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        http=BoundedConnection,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=list(settings.proxies),
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=settings.tls_key_file,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        name = (
            settings.tls_cert_file
            if settings.tls_key_file is None
            else f"{settings.tls_cert_file}, {settings.tls_key_file}"
        )
        raise SettingsError(f"TLS files {name}: {error.strerror or error}") from None
    server = _AnnouncedServer(config, lambda: announce(address_of(settings, listener)))
    os.nice(LOWER_PRIORITY)
    if with_parent:
        threading.Thread(target=_end_with_input, args=(server,), name="metaq-parent", daemon=True).start()
    server.run(sockets=[listener])


def _end_with_input(server: uvicorn.Server) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    server.should_exit = True


def address_of(settings: ConsoleSettings, listener: socket.socket) -> str:
    """Return the URL of the server."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.tls_cert_file is None else "https"
    return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"


class _AnnouncedServer(uvicorn.Server):
    """A server that says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on SIGINT and SIGTERM with exit status 0; uvicorn would raise the signal again afterwards."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()
