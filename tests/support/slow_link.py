"""A way to a server on which each piece of a request takes time, as one to another continent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

from metaq.model import Address

CHUNK_BYTES = 1 << 16


@contextmanager
def slow_link(server: Address, delay_s: float) -> Iterator[Address]:
    """Yield an address that leads to ``server``; what is sent there arrives ``delay_s`` later, answers do at once."""
    with ExitStack() as open_ones, socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client = open_ones.enter_context(closing(listener.accept()[0]))
                    behind = open_ones.enter_context(closing(socket.create_connection((server.host, server.port))))
                    _in_thread(_carry, client, behind, delay_s)
                    _in_thread(_carry, behind, client, 0.0)

        _in_thread(accept)
        yield Address("127.0.0.1", listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def _in_thread(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _carry(from_: socket.socket, to: socket.socket, delay_s: float) -> None:
    with suppress(OSError):
        while chunk := from_.recv(CHUNK_BYTES):
            threading.Event().wait(delay_s)
            to.sendall(chunk)
        to.shutdown(socket.SHUT_WR)
