"""A second view of a connection's socket never closes it."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from typing import cast

from metaq_broker.serve.borrowed_socket import borrow


def test_a_dropped_view_leaves_the_socket_open() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        view = borrow(cast(asyncio.trsock.TransportSocket, ours))
        assert view.fileno() == ours.fileno()
        view.send(b"he", socket.MSG_MORE)
        del view
        gc.collect()
        ours.sendall(b"llo")
        assert theirs.recv(5, socket.MSG_WAITALL) == b"hello"


def test_a_view_that_outlives_its_socket_does_not_close_the_next_file() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        view = borrow(cast(asyncio.trsock.TransportSocket, ours))
        number = ours.fileno()
        ours.close()
        other = os.dup(theirs.fileno())
        try:
            assert other == number, "the number was not used again, so this shows nothing"
            del view
            gc.collect()
            os.fstat(other)
        finally:
            os.close(other)


def test_a_full_socket_takes_nothing_and_does_not_wait() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        view = borrow(cast(asyncio.trsock.TransportSocket, ours))
        while True:
            try:
                assert view.send(bytes(1 << 16), socket.MSG_MORE) > 0
            except BlockingIOError:
                break
