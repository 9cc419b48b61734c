"""Servers in the test's process, each with an event loop in a thread of its own: brokers and name servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fix_broker import system_section
from metaq_broker.app import Broker
from metaq_broker.clock import ManualClock
from metaq_broker.config.configuration import parse
from metaq_broker.nameserver.app import NameServer
from metaq_broker.nameserver.config import load
from waiting import until

from metaq.model import Address

DEADLINE_S = 60.0

T = TypeVar("T")


class LoopThread:
    """Runs from the start until ``close``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; return what it returned."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@contextmanager
def broker_thread(folder: Path, rest: str = "[topic=*]\n", **keys: object) -> Iterator[Address]:
    """Run a broker with its messages in ``folder`` as long as the block lasts; yield its address.

    ``keys`` are of its system section, ``rest`` stands behind that.
    """
    text = system_section(**{"dataPath": folder, "hostName": "127.0.0.1", "bindAddress": "127.0.0.1"} | keys)
    broker = Broker(parse(f"{text}{rest}".encode(), "test.ini"), None, lambda: None)
    with closing(LoopThread()) as loop:
        try:
            loop.run(broker.open())
            loop.run(broker.serve())
            yield Address("127.0.0.1", broker.port)
        finally:
            loop.run(broker.close())


T = TypeVar("T")


class RunningNameServer(LoopThread):
    """``server`` runs in a thread, with a clock that tests move; ``do`` runs something there."""

    def __init__(self, folder: Path, text: str) -> None:
        self.clock = ManualClock()
        file = folder / "namesrv.properties"
        file.write_text(f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={folder / 'kvConfig.json'}\n{text}")
        config, self.warnings = load(file.read_text(), str(file))
        super().__init__()
        self.server = self.do(lambda: NameServer(config, file, clock=self.clock))

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.server.port)

    def do(self, work: Callable[[], T]) -> T:
        """Call something on the server's loop; return what it returned."""

        async def call() -> T:
            return work()

        return self.run(call())

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        self.run(until(condition, deadline_s=timeout_s))


@contextmanager
def running_name_server(folder: Path, text: str = "") -> Iterator[RunningNameServer]:
    """A name server that keeps its files in ``folder``; ``text`` is added to its configuration."""
    with closing(RunningNameServer(folder, text)) as running:
        running.run(running.server.start())
        try:
            yield running
        finally:
            running.run(running.server.stop())
