"""Runs a broker in this process until a signal, or an operator, stops it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import metaq
from metaq.model import Address
from metaq_broker.app import Broker
from metaq_broker.log.files.errors import is_disk_full
from metaq_broker.log.files.open_files import raise_limit
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.start_errors import StartFailed

FULL_PAUSE_S: Final = 1.0
"""Seconds between two attempts to open a member whose disk is full."""

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
    """Run brokers one after the other: a member of a pair that may not go on is closed, and opened again.

    Opening is retried while its disk is full, so that the broker need not be started by hand.
    """
    stop = asyncio.Event()
    is_first = True
    while not stop.is_set():
        again = asyncio.Event()
        broker = Broker(config, file, stop.set, lambda _reason, again=again: again.set())  # type: ignore[misc]
        _react_to_signals(broker, stop)
        try:
            await broker.open()
            if not await _before(stop, broker.serve()):
                return
            address = Address(config.system.host_name, broker.port)
            _LOG.info("ready", extra={"fields": broker.startup_summary()})
            if is_first:
                _tell_ready(broker, address)
                announce(broker.port)
            await _first_of(stop.wait(), again.wait())
            _LOG.info("stopping" if stop.is_set() else "opening again", extra={"fields": {"address": address}})
        except (StartFailed, OSError) as error:
            if is_first or not _is_full(error):
                raise
            _LOG.warning("not opened again yet", extra={"fields": {"reason": str(error)}})
            await _first_of(stop.wait(), asyncio.sleep(FULL_PAUSE_S))
            continue
        finally:
            await broker.close()
        # with the topics that were reloaded, and the same port even if any was free
        config = dataclasses.replace(
            broker.config, system=dataclasses.replace(broker.config.system, server_port=broker.port)
        )
        is_first = False
    _LOG.info("stopped", extra={"fields": {"address": address}})


def _is_full(error: BaseException | None) -> bool:
    """Whether ``error``, or its cause, is a full disk."""
    while error is not None:
        if isinstance(error, OSError) and is_disk_full(error):
            return True
        error = error.__cause__
    return False


def _react_to_signals(broker: Broker, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number, react in ((signal.SIGTERM, stop.set), (signal.SIGINT, stop.set), (signal.SIGHUP, broker.on_sighup)):
        loop.add_signal_handler(number, react)


def _tell_ready(broker: Broker, address: Address) -> None:
    data_path = broker.config.system.data_path
    print(f"metaq-broker {metaq.__version__} ready on {address}, data in {data_path}", flush=True)
    if (rocketmq := broker.rocketmq_address) is not None:
        print(f"RocketMQ clients: {rocketmq} is name server and broker", flush=True)
    if broker.console is not None:
        print(f"HTTP and dashboard: {broker.console.url}", flush=True)


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return when the first of them has ended; cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


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
