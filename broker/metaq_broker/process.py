"""Runs a broker in this process until a signal, or an operator, stops it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import metaq
from metaq.model import Address
from metaq_broker.app import Broker
from metaq_broker.log.files.open_files import raise_limit
from metaq_broker.operate.config.configuration import BrokerConfig

_LOG: Final = logging.getLogger(__name__)


def run(config: BrokerConfig, announce: Callable[[int], None] = lambda port: None, *, file: Path | None = None) -> None:
    """Run a broker until SIGTERM, SIGINT or an operator's shutdown; ``announce`` is called with the port when it
    accepts clients.

    ``file`` is read again on SIGHUP; without one SIGHUP stops the broker.

    Raises:
        StartFailed: It could not start.
    """
    raise_limit()
    with asyncio.Runner() as runner:
        runner.run(_serve(config, announce, file))


async def _serve(config: BrokerConfig, announce: Callable[[int], None], file: Path | None) -> None:
    stop = asyncio.Event()
    broker = Broker(config, file, stop.set)
    loop = asyncio.get_running_loop()
    for number, react in ((signal.SIGTERM, stop.set), (signal.SIGINT, stop.set), (signal.SIGHUP, broker.on_sighup)):
        loop.add_signal_handler(number, react)
    try:
        await broker.open()
        if not await _before(stop, broker.serve()):
            return
        address = Address(config.system.host_name, broker.port)
        _LOG.info("ready", extra={"fields": broker.startup_summary()})
        print(f"metaq-broker {metaq.__version__} ready on {address}, data in {config.system.data_path}", flush=True)
        if (rocketmq := broker.rocketmq_address) is not None:
            print(f"RocketMQ clients: {rocketmq} is name server and broker", flush=True)
        if broker.console is not None:
            print(f"HTTP: {broker.console.url}", flush=True)
        announce(broker.port)
        await stop.wait()
        _LOG.info("stopping", extra={"fields": {"address": address}})
    finally:
        await broker.close()
    _LOG.info("stopped", extra={"fields": {"address": address}})


async def _before(stop: asyncio.Event, starting: Coroutine[Any, Any, None]) -> bool:
    """Await ``starting``, which may wait for ZooKeeper, but cancel it when ``stop`` is set; return whether it finished.
    """
    task, stopped = asyncio.create_task(starting), asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return False
    await task
    return True
