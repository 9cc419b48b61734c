"""Flags for ``send``, on a socket that belongs to asyncio.

asyncio shows the socket of a transport without its ``send``. The object here has it, for the same descriptor, and never
closes it, however it ends: by then the number may be that of another file.
"""

from __future__ import annotations

import asyncio.trsock
import socket


class BorrowedSocket(socket.socket):
    """A second view of a connected socket; made by ``borrow``. To be dropped when its owner closes the socket."""

    def __del__(self) -> None:
        # Stands where the closing finalizer of a socket would run.
        self.detach()


def borrow(owned: asyncio.trsock.TransportSocket) -> BorrowedSocket:
    """Return a view of a transport's socket."""
    return BorrowedSocket(owned.family, owned.type, owned.proto, fileno=owned.fileno())
