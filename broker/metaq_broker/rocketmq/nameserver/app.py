"""The running name server: its port, its tables, its timer."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import metaq
from metaq.model import Address
from metaq.protocols.remoting.channel import ChannelLimits
from metaq_broker.clock import Clock
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.open_files import raise_limit
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.rocketmq.nameserver.config import NameServerConfig
from metaq_broker.rocketmq.nameserver.key_values import KeyValueLimits, KeyValues
from metaq_broker.rocketmq.nameserver.requests import NameServerRequests
from metaq_broker.rocketmq.nameserver.routes import RouteLimits, RouteTable
from metaq_broker.rocketmq.nameserver.settings import LiveSettings
from metaq_broker.rocketmq.session import RemotingLimits, RemotingServer
from metaq_broker.serve.server import Server, bind
from metaq_broker.serve.session import ConnectionCounts
from metaq_broker.serve.tls import server_context
from metaq_broker.start_errors import StartFailed, listen_fault

_LOG: Final = logging.getLogger(__name__)
_OTHER_PORT: Final = "set another listenPort (0 = any free port)"

STOP_S: Final = 5.0
"""Seconds that clients may take to read their responses when the name server stops."""


class NameServer:
    """``file``: where changed settings are kept."""

    def __init__(
        self, config: NameServerConfig, file: Path, *, clock: Clock | None = None, files: Files | None = None
    ) -> None:
        self._config = config
        clock, files = Clock() if clock is None else clock, Files() if files is None else files
        self.routes = RouteTable(
            lambda: int(clock.since_boot() * 1000), RouteLimits(config.brokers_max, config.queues_max)
        )
        self.key_values = KeyValues(
            files, Path(config.kv_config_path), KeyValueLimits(file_bytes_max=config.kv_bytes_max)
        )
        settings = LiveSettings(config, files, file)
        self._requests = NameServerRequests(self.routes, self.key_values, settings)
        self._scan: asyncio.TimerHandle | None = None
        self._server: Server | None = None
        self._remoting: RemotingServer | None = None
        self.counts = ConnectionCounts()
        self.port = 0
        """The port it listens on; 0 before it does."""

    async def start(self) -> None:
        """Read the files and listen.

        Raises:
            ConfigError: A file cannot be used.
            StartFailed: The port cannot be used.
        """
        config = self._config
        tls = _tls(config)
        self.key_values.open()
        own = ChannelLimits(config.requests_max, config.oneways_max)
        self._remoting = RemotingServer(self._requests.dispatcher, RemotingLimits(config.frame_bytes_max, own=own))
        optional = config.tls_mode == "permissive"
        server = Server(self._remoting.session, config, self.counts, lambda: 0, tls, tls_optional=optional)
        try:
            listener = bind(config.bind_address, config.listen_port)
            self.port = listener.getsockname()[1]
            await server.start(listener)
        except OSError as error:
            raise StartFailed(
                listen_fault(config.bind_address, config.listen_port, error, instead=_OTHER_PORT)
            ) from None
        self._server = server
        self._schedule_scan()

    async def stop(self) -> None:
        """Answer received requests, then close everything."""
        if self._scan is not None:
            self._scan.cancel()
        if self._remoting is not None:
            self._remoting.stop()
        if self._server is not None:
            await self._server.stop(STOP_S)
        self._requests.close()
        await self.key_values.close()

    def scan(self) -> None:
        """Forget the brokers that were silent for too long, and close their connections."""
        self._requests.expire()

    def _schedule_scan(self) -> None:
        interval_s = self._config.scan_interval_ms / 1000
        self._scan = asyncio.get_running_loop().call_later(interval_s, self._scan_and_schedule)

    def _scan_and_schedule(self) -> None:
        self.scan()
        self._schedule_scan()


def run(config: NameServerConfig, file: Path, announce: Callable[[int], None] = lambda port: None) -> None:
    """Run a name server until SIGTERM or SIGINT; ``announce`` gets the port when it can be used.

    Raises:
        ConfigError: A file cannot be used.
        StartFailed: The port cannot be used.
    """
    raise_limit()
    with asyncio.Runner() as runner:
        runner.run(_serve(config, file, announce))


async def _serve(config: NameServerConfig, file: Path, announce: Callable[[int], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = NameServer(config, file)
    try:
        await server.start()
        address = Address(config.bind_address, server.port)
        _LOG.info("ready", extra={"fields": {"address": address, "kvConfig": config.kv_config_path}})
        print(f"metaq-namesrv {metaq.__version__} ready on {address}", flush=True)
        announce(server.port)
        await stop.wait()
        _LOG.info("stopping", extra={"fields": {"address": address}})
    finally:
        await server.stop()


_TLS_KEYS: Final = {
    "[system] tlsCertFile": "tls.server.certPath",
    "[system] tlsKeyFile": "tls.server.keyPath",
    "[system] tlsClientCaFile": "tls.server.trustCertPath",
}


def _tls(config: NameServerConfig) -> ssl.SSLContext | None:
    if config.tls_mode == "disabled":
        return None
    try:
        return server_context(config)
    except ConfigError as error:
        raise ConfigError(_TLS_KEYS.get(error.where, error.where), error.what) from None
