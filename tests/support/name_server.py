"""A name server inside the test process, on an event loop of its own and with a clock that tests move."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from metaq_broker.clock import ManualClock
from metaq_broker.nameserver.app import NameServer
from metaq_broker.nameserver.config import load
from metaq_broker.storage.files import Files

from metaq.model import Address

T = TypeVar("T")


class RunningNameServer:
    """``server`` runs in a thread; ``do`` runs something there and returns what it returned."""

    def __init__(self, folder: Path, text: str = "", files: Files | None = None) -> None:
        self.clock = ManualClock()
        file = folder / "namesrv.properties"
        own = f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={folder / 'kvConfig.json'}\n"
        file.write_text(own + text)
        config, self.warnings = load(file.read_text(), str(file))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self.server = self.run(self._make(config, file, files))
            self.run(self.server.start())
        except BaseException:
            self._end()
            raise
        self.address = Address("127.0.0.1", self.server.port)

    async def _make(self, config: Any, file: Path, files: Files | None) -> NameServer:
        return NameServer(config, file, clock=self.clock, files=files)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def do(self, work: Callable[[], T]) -> T:
        """Call something on the server's loop."""

        async def call() -> T:
            return work()

        return self.run(call())

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until a condition on the server's state holds."""

        async def wait() -> None:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await asyncio.sleep(0.005)

        self.run(wait())

    def stop(self) -> None:
        """Stop the server and its thread."""
        try:
            self.run(self.server.stop())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@contextmanager
def running_name_server(folder: Path, text: str = "", files: Files | None = None) -> Iterator[RunningNameServer]:
    """A name server that keeps its files in ``folder``; ``text`` is added to its configuration."""
    server = RunningNameServer(folder, text, files)
    try:
        yield server
    finally:
        server.stop()
