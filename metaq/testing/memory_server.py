"""A broker in memory on a port of this machine: any client reaches it, in this process or another, sync or asyncio.

::

    with MemoryServer() as server, server.client() as mq:
        mq.producer().send("orders", "one tea")

There is no process to start and no disk. ``broker`` is the ``MemoryBroker`` behind it: its ``before_command`` can break
connections at a chosen command, ``commands`` lists the received commands. A thread with its own event loop serves it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from metaq.errors import ProtocolError
from metaq.formats.message_id import IdWorker
from metaq.model import Address
from metaq.net.clock import wall_clock_ms
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder
from metaq.testing.local_broker import LocalBroker
from metaq.testing.memory import MemoryBroker
from metaq.testing.stream_server import HOST, StreamServer

MESSAGE_BYTES_MAX: Final = 4 << 20
"""Longest message, as a broker's if it is not configured otherwise."""

CHUNK_BYTES: Final = 1 << 18
CALL_S: Final = 10.0
"""Longest wait for the server's thread."""

_T = TypeVar("_T")


class MemoryServer(LocalBroker):
    """``partitions`` of each topic; ``broker`` is another state to serve than a new one."""

    def __init__(self, partitions: int = 1, *, broker: MemoryBroker | None = None) -> None:
        super().__init__()
        if broker is None:
            broker, ids = MemoryBroker({"*": partitions}, message_bytes_max=MESSAGE_BYTES_MAX), IdWorker(0)
            broker.reserve_ids = lambda count: ids.reserve(count, wall_clock_ms())
        self.broker: Final = broker
        self._server = StreamServer(self._serve)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> Address:
        """The server's address; the port was free when this object was made."""
        return Address(HOST, self._server.port)

    @property
    def running(self) -> bool:
        return self._server.is_up

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="metaq-memory-broker", daemon=True)
            self._thread.start()
        if not self.running:
            self._await(self._listen())

    def stop(self) -> None:
        """Stop the server; the same as ``kill``, because no data is lost."""
        self.kill()

    def kill(self) -> None:
        if self.running:
            self._await(self._disconnect())

    def clear(self) -> None:
        self.start()
        self.do(self.broker.clear)

    def close(self) -> None:
        super().close()
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(CALL_S)
            loop.close()

    def do(self, work: Callable[[], _T]) -> _T:
        """Run ``work`` in the server's loop, while no command is being processed; return its result."""

        async def run() -> _T:
            return work()

        return self._await(run())

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None, "it was closed"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    async def _listen(self) -> None:
        await self._server.start()
        self.broker.start()

    async def _disconnect(self) -> None:
        self.broker.kill()
        await self._server.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = CommandDecoder()
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                decoder.receive_data(chunk)
                while (command := decoder.next_command()) is not NEED_DATA:
                    reply = self.broker.handle(command, writer)  # type: ignore[arg-type]  # no limit, so no Oversized
                    if reply is None or not self.broker.running:
                        return
                    writer.write(reply)
                await writer.drain()
        except ProtocolError:
            pass
        finally:
            self.broker.disconnected(writer)
