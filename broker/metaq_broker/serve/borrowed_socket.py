"""``send`` with flags on a socket that belongs to asyncio.

asyncio shows the socket of a transport without its ``send``. The object here has it, for the same descriptor, and never
closes it: by then the number may be another file's.
"""

from __future__ import annotations

import asyncio.trsock
import socket


class BorrowedSocket(socket.socket):
    """A second view of a connected socket; made by ``borrow``. Drop it when the owner closes the socket."""

    def __del__(self) -> None:
        # Replaces the finalizer of a socket, which would close it.
        self.detach()


def borrow(owned: asyncio.trsock.TransportSocket) -> BorrowedSocket:
    return BorrowedSocket(owned.family, owned.type, owned.proto, fileno=owned.fileno())
