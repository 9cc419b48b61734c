"""A name server inside the test process, on an event loop of its own and with a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from loop_thread import LoopThread
from metaq_broker.clock import ManualClock
from metaq_broker.nameserver.app import NameServer
from metaq_broker.nameserver.config import load
from metaq_broker.storage.files import Files
from waiting import until

from metaq.model import Address

T = TypeVar("T")


class RunningNameServer(LoopThread):
    """``server`` runs in a thread; ``do`` runs something there and returns what it returned."""

    def __init__(self, folder: Path, text: str = "", files: Files | None = None) -> None:
        self.clock = ManualClock()
        file = folder / "namesrv.properties"
        own = f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={folder / 'kvConfig.json'}\n"
        file.write_text(own + text)
        config, self.warnings = load(file.read_text(), str(file))
        super().__init__()
        try:
            self.server = self.run(self._make(config, file, files))
            self.run(self.server.start())
        except BaseException:
            self.close()
            raise
        self.address = Address("127.0.0.1", self.server.port)

    async def _make(self, config: Any, file: Path, files: Files | None) -> NameServer:
        return NameServer(config, file, clock=self.clock, files=files)

    def do(self, work: Callable[[], T]) -> T:
        """Call something on the server's loop."""

        async def call() -> T:
            return work()

        return self.run(call())

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until a condition on the server's state holds."""
        self.run(until(condition, deadline_s=timeout_s))

    def stop(self) -> None:
        """Stop the server and its thread."""
        try:
            self.run(self.server.stop())
        finally:
            self.close()


@contextmanager
def running_name_server(folder: Path, text: str = "", files: Files | None = None) -> Iterator[RunningNameServer]:
    """A name server that keeps its files in ``folder``; ``text`` is added to its configuration."""
    server = RunningNameServer(folder, text, files)
    try:
        yield server
    finally:
        server.stop()
