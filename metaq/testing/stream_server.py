"""A local port whose connections are served by coroutines, and which can stop at any time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from metaq.testing.ports import free_port

HOST: Final = "127.0.0.1"

ACCEPT_ROUNDS: Final = 5
"""More rounds of the loop than between ``accept`` and the first step of the serving coroutine."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class StreamServer:
    """Calls ``serve`` with each connection, and closes that when it returns. For one event loop; it may start again."""

    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None) -> None:
        self._serve_one, self._tls = serve, tls
        self.port = free_port()
        """It stays the same over restarts."""
        self._listener: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def is_up(self) -> bool:
        """Whether it listens."""
        return self._listener is not None

    async def start(self) -> None:
        """Listen, unless it does already. Raises ``OSError``."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, HOST, self.port, ssl=self._tls)

    async def stop(self) -> None:
        """Close all connections; later ones are refused.

        A connection that is just being accepted is closed, too: asyncio of Python 3.11 leaves it open forever if
        the server is closed before its transport is created.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return
        for socket in listener.sockets:
            asyncio.get_running_loop().remove_reader(socket.fileno())
        for _ in range(ACCEPT_ROUNDS):
            await asyncio.sleep(0)
        listener.close()
        for task, writer in self._connections.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            await self._serve_one(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            del self._connections[task]
            writer.close()
