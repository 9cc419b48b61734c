"""What operators see of a running broker: the control socket, reload, metrics. Opened last at start, closed first.

None of it is needed to serve clients: a control socket that cannot be made is an error in the log, not the end.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaq.errors import MetaqError
from metaq.model import Address
from metaq_broker.admin.commands import control_commands
from metaq_broker.admin.maintenance import PartitionMaintenance
from metaq_broker.admin.reload import Reloader
from metaq_broker.admin.server import ControlServer
from metaq_broker.admin.services import ControlServices
from metaq_broker.clock import Clock
from metaq_broker.config.configuration import BrokerConfig
from metaq_broker.engine.engine import Engine
from metaq_broker.frontends.net.server import bind
from metaq_broker.monitoring.disk_guard import DiskGuard
from metaq_broker.monitoring.measures import Distribution, Measure, MetricSources, TopicLabels, disk_free, gather
from metaq_broker.replication.roles import Replication
from metaq_broker.retention.schedule import Retention
from metaq_broker.storage.flush import GroupCommit
from metaq_broker.transactions.manager import TransactionManager

if TYPE_CHECKING:
    from metaq_broker.monitoring.exposition import MetricsServer
    from metaq_broker.registration.registration import Registration

_LOG: Final = logging.getLogger(__name__)

GATHER_S_MAX: Final = 5.0
"""How long a scrape waits for the event loop."""


class MetricsUnavailable(MetaqError):
    """Metrics were asked for and cannot be served; the text says what to do."""


def bind_metrics(host: str, port: int) -> socket.socket | None:
    """Return the socket for metrics, ``None`` if none are wanted (port 0). Nothing has been opened yet.

    Raises:
        MetricsUnavailable: The package for it is missing, or the port cannot be had.
    """
    if port == 0:
        return None
    if importlib.util.find_spec("prometheus_client") is None:
        advice = "pip install 'metaq-spark[metrics]', or set metricsPort=0"
        raise MetricsUnavailable(f"metricsPort={port} needs the package prometheus_client: {advice}")
    try:
        return bind(host, port)
    except OSError as error:
        reason = error.strerror or error
        raise MetricsUnavailable(f"cannot listen on {host} port {port} for metrics (metricsPort): {reason}") from error


@dataclass(frozen=True, slots=True)
class OperatedBroker:
    """The parts of a broker that operators work on. ``config`` tells the present one, ``apply`` takes over another."""

    config: Callable[[], BrokerConfig]
    apply: Callable[[BrokerConfig], None]
    announce: Callable[[BrokerConfig], Awaitable[None]]
    stop: Callable[[], None]
    clock: Clock
    address: Address
    engine: Engine
    commit: GroupCommit
    transactions: TransactionManager
    retention: Retention
    guard: DiskGuard
    replication: Replication
    registration: Registration | None


class AdminServices:
    """``open``, then ``quiesce`` before anything of the broker is closed, then ``close`` when all of it is."""

    def __init__(self, broker: OperatedBroker, file: Path | None, metrics_listener: socket.socket | None) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        engine = broker.engine
        self.reloader = Reloader(file, broker.config, engine.stores, broker.apply, broker.clock, broker.announce)
        self._sources = MetricSources(
            engine,
            broker.commit,
            broker.transactions,
            broker.retention,
            broker.guard,
            broker.replication,
            broker.registration,
            TopicLabels(),
        )
        self._metrics = self._metrics_server(metrics_listener)
        services = ControlServices(
            address=broker.address,
            metrics_address=_address_of(metrics_listener),
            engine=engine,
            maintenance=PartitionMaintenance(
                engine, broker.commit, broker.transactions.users_of, broker.retention.settle
            ),
            transactions=broker.transactions,
            retention=broker.retention,
            guard=broker.guard,
            registration=broker.registration,
            reloader=self.reloader,
            replication=broker.replication,
            stop=broker.stop,
        )
        directory = Path(broker.config().system.data_path)
        self._control = ControlServer(directory, control_commands(services))

    async def open(self) -> None:
        """Take commands, serve metrics."""
        try:
            await self._control.start()
        except OSError as error:
            _LOG.error("no control socket, metaq-broker ctl does not work", extra={"fields": {"reason": str(error)}})
        if self._metrics is not None:
            self._metrics.start()

    async def quiesce(self, patience_s: float) -> None:
        """Begin nothing more, and let what operators began finish, but no longer than ``patience_s``."""
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        await self._control.quiesce(patience_s)
        await self.reloader.stop()

    async def close(self) -> None:
        """Let go of who waits for the broker's end."""
        await self._control.close()

    def _metrics_server(self, listener: socket.socket | None) -> MetricsServer | None:
        if listener is None:
            return None
        from metaq_broker.monitoring.exposition import MetricsServer  # here: it needs a package that is optional

        return MetricsServer(listener, self._figures)

    def _figures(self) -> list[Measure | Distribution]:
        """Return all figures (in the thread of a scrape).

        Raises:
            TimeoutError: The event loop is too busy.
        """

        async def gathered() -> list[Measure | Distribution]:
            return gather(self._sources)

        figures = asyncio.run_coroutine_threadsafe(gathered(), self._loop).result(GATHER_S_MAX)
        stores = self._broker.engine.stores
        return [*figures, disk_free(stores.data_paths, stores.free_bytes)]


def _address_of(listener: socket.socket | None) -> Address | None:
    return None if listener is None else Address(*listener.getsockname()[:2])
