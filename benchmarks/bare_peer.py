"""Peers of the broker: bare servers with the least possible work, and a network with a delay.

``bare_peer`` and ``listening`` run a function as a server in a process of its own. Those of this module do not decode
their input: they receive messages of a known size, send replies of a known size, and copy bytes to and from a file with
plain system calls. Connections within the machine are not paced, like the broker's.

``far`` delays what is sent to a broker, to show how many round trips an operation waits for. Bytes are passed on after
the delay, in order: a request costs its sender the delay only if the sender waits for the answer before the next one.
Connecting is not delayed.

``counting`` passes everything on to a broker and counts the requests, and how often a client waited for the answers.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from metaq.model import Address
from metaq.net.loopback import disable_pacing
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder

CHUNK_BYTES = 1 << 18


def take_messages(
    connection: socket.socket, file: Path, message_bytes: int, reply: bytes, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """Write received bytes to ``file``, sync it after each chunk, answer every whole message with ``reply``."""
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


def take_messages_twice(
    connection: socket.socket, file: Path, message_bytes: int, reply: bytes, second: tuple[str, int]
) -> None:
    """Do what ``take_messages`` does, and pass every byte on to a server at ``second`` that does it, too.

    Both sync at the same time; a message is answered when both have synced it.
    """
    fd, received, answered, answered_there = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 0, 0, 0
    with socket.create_connection(second) as there:
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        disable_pacing(there)
        while chunk := connection.recv(CHUNK_BYTES):
            there.sendall(chunk)
            os.write(fd, chunk)
            received += len(chunk)
            whole = received // message_bytes - answered
            if whole:
                os.fdatasync(fd)
                answered += whole
                while answered_there < answered:
                    answered_there += len(there.recv(CHUNK_BYTES))
                connection.sendall(reply * whole)
    os.close(fd)


def send_file(
    connection: socket.socket,
    file: Path,
    request_bytes: int,
    head_bytes: int,
    slice_bytes: int,
    file_bytes: int | None = None,
) -> None:
    """Answer every ``request_bytes`` received with ``head_bytes`` zeros and the next slice of ``file``, without end.

    Only the first ``file_bytes`` of the file are sent, repeatedly.
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
    """Run ``send_file`` without heads for every connection, each in a thread of its own."""

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            disable_pacing(connection)
            send_file(connection, file, request_bytes, 0, slice_bytes)

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def store_blocks(listener: socket.socket, folder: Path, block_bytes: int) -> None:
    """Run ``take_messages`` of ``block_bytes`` for every connection: a thread and a new file for each."""

    def store(connection: socket.socket, file: Path) -> None:
        with connection, suppress(OSError):
            take_messages(connection, file, block_bytes, b".", block_bytes)
        file.unlink()

    for number in count():
        threading.Thread(target=store, args=(listener.accept()[0], folder / f"{number}"), daemon=True).start()


@contextmanager
def listening(serve: Callable[..., None], *arguments: object) -> Iterator[tuple[str, int]]:
    """Run ``serve``, which accepts its connections itself, in another process; yield the address to connect to."""
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

    ``paced``: leave the system's pacing of the connection on.
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


RELAY_CHUNK_BYTES = 1 << 18


@contextmanager
def far(address: Address, delay_s: float) -> Iterator[Address]:
    """Yield an address that leads to ``address``; data arrive there ``delay_s`` after they are sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(target=_run_relay, args=(listener, address, delay_s))
        process.start()
        try:
            yield Address("127.0.0.1", listener.getsockname()[1])
        finally:
            process.terminate()
            process.join()


def _run_relay(listener: socket.socket, address: Address, delay_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    asyncio.run(_relay(listener, address, delay_s))


async def _relay(listener: socket.socket, address: Address, delay_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near, there = await asyncio.open_connection(address.host, address.port)
        await asyncio.gather(_pass_on(reader, there, delay_s), _pass_on(near, writer, 0))

    async with await asyncio.start_server(connected, sock=listener) as server:
        await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Pass on each chunk ``delay_s`` after its arrival, until the end."""
    loop = asyncio.get_running_loop()
    while chunk := await reader.read(RELAY_CHUNK_BYTES):
        loop.call_later(delay_s, writer.write, chunk) if delay_s else writer.write(chunk)
    loop.call_later(delay_s, writer.close)


@dataclass
class Requests:
    """``requests`` of all connections; ``round_trips``: the ones that followed an answer or began a connection."""

    requests: int = 0
    round_trips: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def counting(address: Address) -> Iterator[tuple[Address, Requests]]:
    """Yield an address that leads to the MetaQ broker at ``address``, and what has been asked there so far."""
    counts = Requests()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_count_all, args=(listener, address, counts), daemon=True).start()
        yield Address("127.0.0.1", listener.getsockname()[1]), counts
        listener.shutdown(socket.SHUT_RDWR)


def _count_all(listener: socket.socket, address: Address, counts: Requests) -> None:
    with suppress(OSError):
        while True:
            client = listener.accept()[0]
            broker = socket.create_connection((address.host, address.port))
            answered = threading.Event()
            answered.set()
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for carry, given in ((_count, (client, broker, answered, counts)), (_answer, (broker, client, answered))):
                threading.Thread(target=carry, args=given, daemon=True).start()


def _count(client: socket.socket, broker: socket.socket, answered: threading.Event, counts: Requests) -> None:
    decoder = CommandDecoder()
    with client, suppress(OSError):
        while chunk := client.recv(RELAY_CHUNK_BYTES):
            decoder.receive_data(chunk)
            with counts.lock:
                counts.round_trips += answered.is_set()
                answered.clear()
                while decoder.next_command() is not NEED_DATA:
                    counts.requests += 1
            broker.sendall(chunk)
        broker.shutdown(socket.SHUT_WR)


def _answer(broker: socket.socket, client: socket.socket, answered: threading.Event) -> None:
    with broker, suppress(OSError):
        while chunk := broker.recv(RELAY_CHUNK_BYTES):
            answered.set()
            client.sendall(chunk)
        client.shutdown(socket.SHUT_WR)
