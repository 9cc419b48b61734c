"""A server of the remoting protocol that does what a test tells it, on real sockets in threads of its own."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from listening import Listener

from metaq.errors import MetaqError
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


class RemotingServer(Listener):
    """``behaviour`` answers each command that comes in."""

    def __init__(self, behaviour: Behaviour = echo, tls: ssl.SSLContext | None = None) -> None:
        self.behaviour, self._tls = behaviour, tls
        self.connections: list[Served] = []
        self._changed = threading.Condition()
        super().__init__(self._secure)

    @property
    def received(self) -> list[RemotingCommand]:
        """All commands that came in, of all connections."""
        return [command for served in self.connections for command in served.received]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until something holds that changes with what came in."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s)

    def end_connections(self) -> None:
        """Wake the threads that wait for their clients."""
        for served in self.connections:
            served.send(None)
        super().end_connections()

    def _secure(self, connected: socket.socket) -> None:
        with connected, suppress(MetaqError):
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
