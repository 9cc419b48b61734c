"""Accepts connections from a listening socket, and refuses them above the limit.

Every client gets an answer, even if the process may open no more files: one descriptor is kept in reserve, with which
such a client is accepted and closed. The number of refused clients is logged once a minute.

asyncio's own server would log a traceback for every client that cannot be accepted for lack of descriptors, and leave
the client waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

from metaq_broker.serve.socket_transport import SocketWatch

_LOG: Final = logging.getLogger(__name__)

BACKLOG: Final = 1024
"""Backlog of the listening socket."""

ACCEPTED_AT_ONCE: Final = 32
"""Limit on connections that one iteration of the event loop accepts."""

PAUSE_S: Final = 1.0
"""Seconds without accepting when not even the reserve is left."""

LOG_INTERVAL_S: Final = 60.0
"""Seconds between two log lines about refused connections."""


class Acceptor:
    """Calls ``protocol`` for each connection while ``free_slots()`` is positive, else ``refused``.

    ``sockets`` makes the transports; if it is ``None``, asyncio does.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        free_slots: Callable[[], int],
        refused: Callable[[], None],
        sockets: SocketWatch | None = None,
    ) -> None:
        self._loop, self._listener = loop, listener
        self._protocol = protocol
        self._free_slots, self._refused = free_slots, refused
        self._sockets = sockets
        self.arriving: dict[asyncio.BaseProtocol, asyncio.Task[None]] = {}
        """Connections that are accepted and have no transport yet, or just got it."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._reserve: int | None = None
        self._unsaid: dict[str, int] = {}

    def start(self) -> None:
        """Begin to accept.

        Raises:
            OSError: Another program listens there now.
        """
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._keep_reserve()
        self._resume()

    def stop(self) -> None:
        """Accept no more connections; existing ones stay."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def _resume(self) -> None:
        self._timers.pop("pause", None)
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._failed(error)
                return
            if self._free_slots() > 0:
                self._open(client)
                continue
            client.close()
            self._note("connection refused, there are too many", {"peer": f"{address[0]}:{address[1]}"})

    def _open(self, client: socket.socket) -> None:
        protocol = self._protocol()
        if self._sockets is not None and isinstance(protocol, asyncio.BufferedProtocol):
            self._sockets.connect(client, protocol)
            return
        self.arriving[protocol] = self._loop.create_task(self._connect(client, protocol))

    async def _connect(self, client: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        try:
            with contextlib.suppress(OSError):  # closed already
                await self._loop.connect_accepted_socket(lambda: protocol, client)
        finally:
            del self.arriving[protocol]

    def _failed(self, error: OSError) -> None:
        fields = {"reason": error.strerror}
        if self._reserve is None:  # the client waits in the backlog meanwhile
            self._keep_reserve()
            self._loop.remove_reader(self._listener)
            self._timers["pause"] = self._loop.call_later(PAUSE_S, self._resume)
            self._note("no connection can be accepted for a while", fields)
            return
        os.close(self._reserve)
        self._reserve = None
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            client.close()
            self._note("connection refused, no file can be opened for it", fields)
        self._keep_reserve()

    def _keep_reserve(self) -> None:
        if self._reserve is None:
            with contextlib.suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _note(self, event: str, fields: Mapping[str, object]) -> None:
        self._refused()
        self._unsaid[event] = self._unsaid.get(event, 0) + 1
        if event not in self._timers:
            self._say(event, fields)

    def _say(self, event: str, fields: Mapping[str, object]) -> None:
        self._timers.pop(event, None)
        if not (count := self._unsaid.pop(event, 0)):
            return
        _LOG.warning(event, extra={"fields": {**fields, "connections": count}})
        self._timers[event] = self._loop.call_later(LOG_INTERVAL_S, self._say, event, fields)
