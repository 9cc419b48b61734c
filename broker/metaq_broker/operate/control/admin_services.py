"""What operators use at a running broker: the control socket, reload, metrics. Opened last; takes no
commands from the moment the others close, and is closed after them.

Clients are served without it, so a control socket that cannot be created is only logged as an error.
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
    """Metrics are configured and cannot be served; the text says what to do."""


def bind_metrics(host: str, port: int) -> socket.socket | None:
    """Return the socket for metrics; ``None`` if there are none (port 0).

    Raises:
        MetricsUnavailable: The package for it is missing, or the port cannot be bound.
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
    """``open``, then ``quiesce`` before other parts of the broker are closed, then ``close`` after that."""

    def __init__(self, parts: BrokerParts, metrics_listener: socket.socket | None) -> None:
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._labels = TopicLabels()
        self._metrics = self._metrics_server(metrics_listener)
        directory = Path(parts.engine.config.system.data_path)
        actions = {name: partial(row.carry_out, parts) for name, row in commands.ACTIONS.items()}
        self._control = ControlServer(directory, actions, [name for name, row in commands.ACTIONS.items() if row.reads])

    async def open(self) -> None:
        """Accept commands and serve metrics."""
        try:
            await self._control.start()
        except OSError as error:
            _LOG.error("no control socket, metaq-broker ctl does not work", extra={"fields": {"reason": str(error)}})
        if self._metrics is not None:
            self._metrics.start()

    async def quiesce(self, patience_s: float) -> None:
        """Start no further commands, and wait for running ones, at most ``patience_s``."""
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        await self._control.quiesce(patience_s)
        await self._parts.reloader.stop()

    async def close(self) -> None:
        """Close the connections of clients that wait for the broker's end."""
        await self._control.close()

    def _metrics_server(self, listener: socket.socket | None) -> MetricsServer | None:
        if listener is None:
            return None
        from metaq_broker.operate.control.exposition import MetricsServer  # imported here: it needs an optional package

        return MetricsServer(listener, self._figures)

    def _figures(self) -> list[Measure | Distribution]:
        async def gathered() -> list[Measure | Distribution]:
            return gather(self._parts, self._labels)

        figures = asyncio.run_coroutine_threadsafe(gathered(), self._loop).result(GATHER_S_MAX)
        stores = self._parts.engine.stores
        return [*figures, disk_free(stores.data_paths, stores.free_bytes)]


def address_of(listener: socket.socket | None) -> Address | None:
    """Return the address of a listener; ``None`` without one."""
    return None if listener is None else Address(*listener.getsockname()[:2])
