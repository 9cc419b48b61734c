"""Puts a broker together, runs it until it is told to stop, and takes it apart again.

Order at start: the port (not yet open), partitions, transactions, clients, the ready line. Order at stop: no more
clients, answers to what was received, the disk, the mark of a clean stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import metaq
from metaq.errors import MetaqError
from metaq.message_id import IdWorker
from metaq.model import Address
from metaq.wire.text.extensions import (
    EXT_BOUNDARY,
    EXT_DECIDE,
    EXT_FILTER,
    EXT_PUT_BATCH,
    EXT_TIMESTAMP,
    version_text,
)
from metaq_broker.clock import Clock
from metaq_broker.config import BrokerConfig, SystemConfig
from metaq_broker.disk_guard import DiskGuard, DiskLimits
from metaq_broker.engine import Engine
from metaq_broker.files import Files
from metaq_broker.frontend.server import TextServer, bind
from metaq_broker.frontend.text import TextServices
from metaq_broker.frontend.tls import server_context
from metaq_broker.frontend.transactions import TransactionCommands
from metaq_broker.log.flush import FlushPolicy, GroupCommit
from metaq_broker.operating import MetricsUnavailable, OperatedBroker, Operating, bind_metrics
from metaq_broker.retention import Retention
from metaq_broker.statistics import Statistics
from metaq_broker.stats_report import StatsReport
from metaq_broker.stores import TopicStores
from metaq_broker.transaction_store import EngineStore
from metaq_broker.tx.checkpoint import CheckpointSettings
from metaq_broker.tx.journal import JournalDamaged, JournalFailed
from metaq_broker.tx.manager import TransactionManager
from metaq_broker.tx.recovery import JournalIncomplete
from metaq_broker.tx.seams import Durability, TransactionLimits

_LOG: Final = logging.getLogger(__name__)

STOP_PATIENCE_S: Final = 10.0
"""How long a stop waits for clients that do not take their replies."""

EXTENSIONS: Final = (EXT_BOUNDARY, EXT_TIMESTAMP, EXT_PUT_BATCH, EXT_DECIDE, EXT_FILTER)


class StartFailed(MetaqError):
    """The broker could not start; the text is one sentence for the operator."""


class Broker:
    """One broker inside a running event loop: ``open``, ``serve``, ``close``."""

    def __init__(self, config: BrokerConfig, file: Path | None, stop: Callable[[], None]) -> None:
        """``file`` is where the configuration came from, if from a file; ``stop`` is what an operator's stop calls."""
        self.config = config
        self._file, self._stop = file, stop
        self._operating: Operating | None = None
        self._files, self._clock = Files(), Clock()
        self._commit = GroupCommit(self._flush_policy)
        self._closing = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Take the port, load what is on the disk and finish what a crash interrupted.

        Raises:
            StartFailed: The port is taken, a data folder is in use or cannot be used, or the journal is damaged.
            ConfigError: A file for TLS cannot be used.
        """
        self._tls = server_context(self.config.system)
        self._bind()
        self._closing.push_async_callback(self._close_operating)
        try:
            self._stores = TopicStores.open(self._files, self._clock, self.config)
        except MetaqError as error:
            raise StartFailed(str(error)) from error
        self._closing.callback(self._stores.close, clean=True)
        self._closing.callback(self._commit.stop)
        self._closing.push_async_callback(self._commit.drain)
        ids = IdWorker(self.config.system.broker_id)
        self._statistics = Statistics(self._clock.monotonic, self._has_figures)
        await self._open_guard()
        self._engine = Engine(self.config, self._stores, self._commit, ids, self._clock, self._statistics, self._guard)
        self._engine.port = self.port
        await self._open_transactions()
        self._retention = Retention(self._files, self._clock, self.config, self._stores, self._transactions)
        self._closing.push_async_callback(self._retention.stop)

    def _bind(self) -> None:
        host, port = self.config.system.bind_address, self.config.system.server_port
        try:
            self._listener = bind(host, port)
        except OSError as error:
            raise StartFailed(_listen_fault(host, port, error)) from error
        self._closing.callback(self._listener.close)
        self.port = int(self._listener.getsockname()[1])
        try:
            self._metrics_listener = bind_metrics(host, self.config.system.metrics_port)
        except MetricsUnavailable as error:
            raise StartFailed(str(error)) from error
        if self._metrics_listener is not None:
            self._closing.callback(self._metrics_listener.close)

    async def _open_guard(self) -> None:
        system = self.config.system
        limits = DiskLimits(system.disk_free_bytes_min, system.disk_free_bytes_resume, system.disk_check_interval_ms)
        self._guard = DiskGuard(self._files, self._clock, limits, _written_folders(self.config))
        await self._guard.check()
        self._closing.push_async_callback(self._guard.stop)

    async def _open_transactions(self) -> None:
        directory = Path(self.config.system.data_log_path) / "transactions"
        store = EngineStore(self._engine, self._commit)
        self._transactions = transaction_manager(self._files, self._clock, directory, store, self.config.system)
        try:
            self._transactions.recover_from_journal()
        except OSError as error:
            raise StartFailed(f"folder {directory} cannot be used: {error.strerror}: {error.filename}") from error
        except (MetaqError, JournalDamaged, JournalIncomplete, JournalFailed) as error:
            raise StartFailed(f"transactions in {directory}: {error}") from error
        self._closing.callback(self._transactions.close)
        await self._commit.drain()  # what was committed before the crash is readable before anybody asks

    async def serve(self) -> None:
        """Accept clients.

        Raises:
            StartFailed: Another program listens on the port now.
        """
        version = version_text(metaq.__version__, EXTENSIONS)
        report = StatsReport(self._engine, self._transactions.counters, version, self._retention, self._guard)
        commands = TransactionCommands(self._transactions, self._statistics)
        server = TextServer(TextServices(self._engine, report, commands, version), self.config.system, self._tls)
        self._closing.push_async_callback(server.stop, STOP_PATIENCE_S)
        try:
            await server.start(self._listener)
        except OSError as error:
            raise StartFailed(_listen_fault(self.config.system.bind_address, self.port, error)) from error
        self._guard.start()
        self._retention.start()
        await self._open_to_operators()

    async def _open_to_operators(self) -> None:
        parts = OperatedBroker(
            lambda: self.config,
            self._apply,
            self._stop,
            self._clock,
            Address(self.config.system.host_name, self.port),
            self._engine,
            self._commit,
            self._transactions,
            self._retention,
            self._guard,
        )
        self._operating = Operating(parts, self._file, self._metrics_listener)
        self._closing.push_async_callback(self._operating.quiesce, STOP_PATIENCE_S)
        await self._operating.open()

    async def _close_operating(self) -> None:
        if self._operating is not None:
            await self._operating.close()

    def _apply(self, config: BrokerConfig) -> None:
        """Go by another configuration of topics from now on."""
        self.config = self._engine.config = config
        self._commit.policies_changed()
        self._retention.update(config)
        self._guard.guard(_written_folders(config))

    def hang_up(self) -> None:
        """Do what SIGHUP asks for: reload the configuration, or stop if there is no file to reload."""
        if self._file is None:
            self._stop()
        elif self._operating is None:
            _LOG.warning("not reloaded, the broker is still starting")
        else:
            self._operating.reloader.reload_soon()

    async def close(self) -> None:
        """Answer what was received, make everything durable, close whatever was opened, in the opposite order."""
        await self._closing.aclose()

    def vital_facts(self) -> dict[str, object]:
        """Return what the log says of a broker that is ready."""
        system = self.config.system
        return {
            "version": metaq.__version__,
            "pid": os.getpid(),
            "address": Address(system.host_name, self.port),
            "data": system.data_path,
            "broker_id": system.broker_id,
            "partitions": self._stores.partition_count,
            "prepared_transactions": len(self._transactions.prepared()),
            "metricsPort": system.metrics_port,
        }

    def _flush_policy(self, topic: str) -> FlushPolicy:
        settings = self.config.topic_settings(topic)
        return FlushPolicy(settings.unflush_threshold, settings.unflush_interval_ms)

    def _has_figures(self, topic: str) -> bool:
        # Only topics that exist: a client that asks for made-up names must not fill the memory with counters.
        known = topic in self.config.topics or self._stores.has_topic(topic)
        return known and self.config.topic_settings(topic).stat


def run(config: BrokerConfig, announce: Callable[[int], None] = lambda port: None, *, file: Path | None = None) -> None:
    """Run a broker until SIGTERM, SIGINT or an operator's shutdown; ``announce`` gets the port when it can be used.

    ``file`` is read again on SIGHUP; without one SIGHUP stops the broker.

    Raises:
        StartFailed: It could not start.
    """
    raise_open_files_limit()
    asyncio.run(_serve(config, announce, file))


async def _serve(config: BrokerConfig, announce: Callable[[int], None], file: Path | None) -> None:
    stop = asyncio.Event()
    broker = Broker(config, file, stop.set)
    loop = asyncio.get_running_loop()
    for number, react in ((signal.SIGTERM, stop.set), (signal.SIGINT, stop.set), (signal.SIGHUP, broker.hang_up)):
        loop.add_signal_handler(number, react)
    try:
        await broker.open()
        await broker.serve()
        address = Address(config.system.host_name, broker.port)
        _LOG.info("ready", extra={"fields": broker.vital_facts()})
        print(f"metaq-broker {metaq.__version__} ready on {address}, data in {config.system.data_path}", flush=True)
        announce(broker.port)
        await stop.wait()
        _LOG.info("stopping", extra={"fields": {"address": address}})
    finally:
        await broker.close()
    _LOG.info("stopped", extra={"fields": {"address": address}})


def transaction_manager(
    files: Files, clock: Clock, directory: Path, store: EngineStore, system: SystemConfig
) -> TransactionManager:
    """Return the transactions of a broker as its configuration wants them; nothing is opened yet."""
    return TransactionManager(
        files,
        clock,
        directory,
        store,
        timeout_s_max=system.transaction_timeout_s_max,
        durability=Durability(system.transaction_flush),
        call_later=asyncio.get_running_loop().call_later,
        limits=TransactionLimits(open_max=system.transaction_timers_max, message_bytes_max=system.message_bytes_max),
        checkpoint=CheckpointSettings(system.checkpoints_max, system.checkpoint_interval_ms / 1000),
        room=store.room,
    )


def _written_folders(config: BrokerConfig) -> list[str]:
    return [*config.data_paths(), config.system.data_log_path]


def raise_open_files_limit() -> None:
    """Let this process open as many files as the system allows it: every partition and every connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listen_fault(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken by another program; choose another one (0 = any free port)"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"
