"""Servers on free ports of this machine whose connections tests have: each runs a function in a thread of its own."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, Self

from metaq.errors import MetaqError
from metaq.model import Address
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode

DEADLINE_S: Final = 60.0
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
        self.stop_listening()
        self.end_connections()
        for thread in self._threads[1:]:
            thread.join(DEADLINE_S)
        for connection in self.accepted:
            connection.close()

    def stop_listening(self) -> None:
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


@dataclass(frozen=True)
class Cut:
    """Where a relay stops: at the ``number``-th request that has ``word`` in it; what it holds then is ``lost``."""

    word: bytes
    lost: Literal["request", "answer"]
    number: int = 1


class Relay(Listener):
    """Passes on what clients and ``target`` say to each other, until one of them goes. ``target`` may change."""

    def __init__(self, target: Address) -> None:
        self.target = target
        super().__init__(self._relay)

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection((self.target.host, self.target.port), DEADLINE_S) as server:
            self.accepted.append(server)
            while True:
                for side in select.select([client, server], [], [])[0]:
                    data = side.recv(1 << 16)
                    if not data or not self._pass_on(data, server, client, side is client):
                        return

    def _pass_on(self, data: bytes, server: socket.socket, client: socket.socket, from_client: bool) -> bool:
        """Return whether to go on."""
        (server if from_client else client).sendall(data)
        return True


class CuttingRelay(Relay):
    """Takes requests of one client to ``target`` one by one, up to ``cut``.

    There it keeps what it has until ``release``, then it ends all connections, and passes on what comes afterwards.
    """

    def __init__(self, target: Address, cut: Cut) -> None:
        self._cut, self._seen = cut, 0
        self.reached = threading.Event()
        """Set when it has stopped."""
        self._released = threading.Event()
        super().__init__(target)

    def end_connections(self) -> None:
        """Lose what it has, and end everything."""
        self.release()
        super().end_connections()

    def release(self) -> None:
        self._released.set()

    def _pass_on(self, data: bytes, server: socket.socket, client: socket.socket, from_client: bool) -> bool:
        if not from_client or not self._is_cut(data):
            return super()._pass_on(data, server, client, from_client)
        if self._cut.lost == "answer":
            server.sendall(data)
            assert server.recv(1 << 16), "the broker answers"
        self.reached.set()
        assert self._released.wait(DEADLINE_S)
        return False

    def _is_cut(self, request: bytes) -> bool:
        if self._cut.word not in request or self.reached.is_set():
            return False
        self._seen += 1
        return self._seen == self._cut.number


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

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
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
                connected.settimeout(60)
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
