"""What operators see of a running broker: the control socket, reload, metrics. Opened last at start, closed first.

None of it is needed to serve clients: a control socket that cannot be made is an error in the log, not the end.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaq.errors import MetaqError
from metaq.model import Address
from metaq_broker.operate.control import commands
from metaq_broker.operate.control.measures import Distribution, Measure, TopicLabels, disk_free, gather
from metaq_broker.operate.control.server import ControlServer
from metaq_broker.operate.control.services import BrokerParts
from metaq_broker.serve.server import bind

if TYPE_CHECKING:
    from metaq_broker.operate.control.exposition import MetricsServer

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


class AdminServices:
    """``open``, then ``quiesce`` before anything of the broker is closed, then ``close`` when all of it is."""

    def __init__(self, parts: BrokerParts, metrics_listener: socket.socket | None) -> None:
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._labels = TopicLabels()
        self._metrics = self._metrics_server(metrics_listener)
        directory = Path(parts.engine.config.system.data_path)
        actions = {name: partial(row.carry_out, parts) for name, row in commands.ACTIONS.items()}
        self._control = ControlServer(directory, actions, [name for name, row in commands.ACTIONS.items() if row.reads])

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
        await self._parts.reloader.stop()

    async def close(self) -> None:
        """Let go of who waits for the broker's end."""
        await self._control.close()

    def _metrics_server(self, listener: socket.socket | None) -> MetricsServer | None:
        if listener is None:
            return None
        from metaq_broker.operate.control.exposition import MetricsServer  # here: it needs a package that is optional

        return MetricsServer(listener, self._figures)

    def _figures(self) -> list[Measure | Distribution]:
        """Return all figures (in the thread of a scrape).

        Raises:
            TimeoutError: The event loop is too busy.
        """

        async def gathered() -> list[Measure | Distribution]:
            return gather(self._parts, self._labels)

        figures = asyncio.run_coroutine_threadsafe(gathered(), self._loop).result(GATHER_S_MAX)
        stores = self._parts.engine.stores
        return [*figures, disk_free(stores.data_paths, stores.free_bytes)]


def address_of(listener: socket.socket | None) -> Address | None:
    """Return where a listener listens, ``None`` without one."""
    return None if listener is None else Address(*listener.getsockname()[:2])
