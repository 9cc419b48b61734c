"""A server of the remoting protocol that does what a test tells it, on real sockets in threads of its own."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from metaq.errors import MetaqError
from metaq.model import Address
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode

Answer = RemotingCommand | bytes | None
"""A command, bytes as they are, or the end of the connection."""


@dataclass
class Served:
    """One connection of the server."""

    connected: socket.socket
    received: list[RemotingCommand] = field(default_factory=list)

    def send(self, *answers: Answer) -> None:
        """Send commands or bytes; ``None`` ends the connection."""
        for answer in answers:
            if answer is None:
                with suppress(OSError):
                    self.connected.shutdown(socket.SHUT_RDWR)
            else:
                self.connected.sendall(answer if isinstance(answer, bytes) else encode(answer))


Behaviour = Callable[[Served, RemotingCommand], Iterable[Answer]]


def echo(_served: Served, command: RemotingCommand) -> Iterable[Answer]:
    """Answer everything with success and its own body."""
    return [] if command.is_oneway or command.is_response else [command.reply(0, command.ext, command.body)]


class RemotingServer:
    """Listens on a free port of 127.0.0.1; ``behaviour`` answers each command that comes in."""

    def __init__(self, behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> None:
        self.behaviour, self._tls = behaviour, tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.connections: list[Served] = []
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def received(self) -> list[RemotingCommand]:
        """All commands that came in, of all connections."""
        return [command for served in self.connections for command in served.received]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until something holds that changes with what came in."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s)

    def stop(self) -> None:
        """End everything."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(20)
        for served in self.connections:
            served.send(None)
        for thread in self._threads[1:]:
            thread.join(20)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connected,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connected: socket.socket) -> None:
        with connected, suppress(OSError, MetaqError):
            if self._tls is not None:
                connected.settimeout(20)
                connected = self._tls.wrap_socket(connected, server_side=True)
            with connected:
                self._converse(Served(connected))

    def _converse(self, served: Served) -> None:
        self.connections.append(served)
        decoder = FrameDecoder()
        while data := served.connected.recv(1 << 16):
            for command in decoder.receive(data):
                with self._changed:
                    served.received.append(command)
                    self._changed.notify_all()
                served.send(*self.behaviour(served, command))


@contextmanager
def running(behaviour: Behaviour = echo, tls: ssl.SSLContext | None = None) -> Iterator[RemotingServer]:
    """Such a server, stopped at the end."""
    server = RemotingServer(behaviour, tls)
    try:
        yield server
    finally:
        server.stop()
