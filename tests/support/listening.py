"""A server on a free port of this machine whose connections a test's function has, each in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from metaq.model import Address

DEADLINE_S: Final = 30.0
"""Longest wait for a thread at the end."""


class Listener:
    """Gives each connection to ``serve``, and closes what is still open when the block ends. Lost ones are no error."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Final = Address("127.0.0.1", self._listener.getsockname()[1])
        self.accepted: Final[list[socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self.stop_listening()
        self.end_connections()
        for thread in self._threads[1:]:
            thread.join(DEADLINE_S)
        for connection in self.accepted:
            connection.close()

    def stop_listening(self) -> None:
        """Refuse further connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(DEADLINE_S)

    def end_connections(self) -> None:
        """Wake the threads that wait for their clients."""
        for connection in self.accepted:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted.append(connection)
            self._threads.append(threading.Thread(target=self._run, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _run(self, connection: socket.socket) -> None:
        with suppress(OSError):
            self._serve(connection)
