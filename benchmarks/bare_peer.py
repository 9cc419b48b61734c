"""The least that a server can do: the ceilings that the broker is compared with.

Each function serves one connection in a process of its own, without looking at what it is sent: whole messages of a
known size in, replies of a known size out, bytes to and from a file with plain system calls. Connections within the
machine are not paced, as those of the broker are not.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from metaq.net.loopback import disable_pacing

CHUNK_BYTES = 1 << 18


def take_messages(
    connection: socket.socket, file: Path, message_bytes: int, reply: bytes, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """Write what arrives to ``file``, sync it after each chunk, answer every whole message with ``reply``."""
    fd = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    received = answered = 0
    while chunk := connection.recv(chunk_bytes):
        os.write(fd, chunk)
        received += len(chunk)
        whole = received // message_bytes - answered
        if whole:
            os.fdatasync(fd)
            connection.sendall(reply * whole)
            answered += whole
    os.close(fd)


def send_file(
    connection: socket.socket,
    file: Path,
    request_bytes: int,
    head_bytes: int,
    slice_bytes: int,
    file_bytes: int | None = None,
) -> None:
    """Answer every ``request_bytes`` received with ``head_bytes`` zeros and the next slice of ``file``, endlessly.

    Only the first ``file_bytes`` of the file are sent, over and over.
    """
    fd, position, pending = os.open(file, os.O_RDONLY), 0, 0
    size = os.path.getsize(file) if file_bytes is None else file_bytes
    while chunk := connection.recv(CHUNK_BYTES):
        pending += len(chunk)
        while pending >= request_bytes:
            pending -= request_bytes
            if position + slice_bytes > size:
                position = 0
            connection.sendall(bytes(head_bytes))
            left = slice_bytes
            while left:
                sent = os.sendfile(connection.fileno(), fd, position, left)
                position, left = position + sent, left - sent
    os.close(fd)


def serve_slices(listener: socket.socket, file: Path, request_bytes: int, slice_bytes: int) -> None:
    """``send_file`` without heads, for as many connections as come, each in a thread of its own."""

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            disable_pacing(connection)
            send_file(connection, file, request_bytes, 0, slice_bytes)

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def store_blocks(listener: socket.socket, folder: Path, block_bytes: int) -> None:
    """``take_messages`` of so many bytes each, for as many connections as come: a thread and a new file for each."""

    def store(connection: socket.socket, file: Path) -> None:
        with connection, suppress(OSError):
            take_messages(connection, file, block_bytes, b".", block_bytes)
        file.unlink()

    for number in count():
        threading.Thread(target=store, args=(listener.accept()[0], folder / f"{number}"), daemon=True).start()


@contextmanager
def listening(serve: Callable[..., None], *arguments: object) -> Iterator[tuple[str, int]]:
    """Run ``serve_slices`` or ``store_blocks`` in another process; yield the address to connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(target=serve, args=(listener, *arguments))
        process.start()
        try:
            yield listener.getsockname()
        finally:
            process.terminate()
            process.join()


@contextmanager
def bare_peer(
    serve: Callable[..., None], *arguments: object, cpu: int | None = None, paced: bool = False
) -> Iterator[tuple[str, int]]:
    """Run ``serve`` for one connection in another process; yield the address to connect to.

    ``paced``: leave the connection as the system makes it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(
            target=_run, args=(listener, cpu, paced, serve, arguments)
        )
        process.start()
        try:
            yield listener.getsockname()
        finally:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _run(
    listener: socket.socket, cpu: int | None, paced: bool, serve: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not paced:
            disable_pacing(connection)
        serve(connection, *arguments)
