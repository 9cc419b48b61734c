"""A TCP proxy in front of a broker that decodes the protocol: an observer sees every step and may cut the connection.

Whole requests and whole replies are passed on, byte for byte, one at a time, so that "before this request" and "after
that reply" are exact. The proxy keeps its port while the broker behind it is killed and started again. Each connection
has two threads: the observer may block in one (to delay a request) without stopping the others.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from faults.exactly_once.steps import Step, step_of
from metaq.errors import ProtocolError
from metaq.model import Address
from metaq.protocols.text.commands import Command, Oversized, Quit, Reply
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder, ReplyDecoder

_CHUNK_BYTES: Final = 1 << 18
_CONNECT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """A step on its way to a broker. ``peer_port`` is the local port of the client."""

    broker_id: int
    step: Step
    command: Command | Oversized
    peer_port: int


class Cut(Exception):
    """Raised by an observer: pass nothing on, and close the connection on both sides."""


class Observer(Protocol):
    """Called for every step, in the thread that carries it. Each method may block, and may raise ``Cut``."""

    def asked(self, sighting: ObservedStep) -> None:
        """A request has arrived and is not passed on yet."""

    def done(self, sighting: ObservedStep, reply: Reply) -> None:
        """The broker's reply has arrived and is not passed on yet."""

    def answered(self, sighting: ObservedStep) -> None:
        """The reply has been passed on."""


class Units:
    """Divides a stream into decoded units, each with its exact bytes."""

    def __init__(self, decoder: CommandDecoder | ReplyDecoder) -> None:
        self._decoder = decoder
        self._next: Callable[[], Any] = (
            decoder.next_command if isinstance(decoder, CommandDecoder) else decoder.next_reply
        )
        self._raw = bytearray()

    def feed(self, chunk: bytes) -> Iterator[tuple[Any, bytes]]:
        """Yield the units that ``chunk`` completes: (command or reply, its bytes).

        Raises:
            ProtocolError: The bytes cannot be decoded; then call it no more.
        """
        self._raw += chunk
        self._decoder.receive_data(chunk)
        while (item := self._next()) is not NEED_DATA:
            whole = len(self._raw) - self._decoder.pending_bytes
            yield item, bytes(self._raw[:whole])
            del self._raw[:whole]


class InspectingProxy:
    """Listens at ``address`` and passes everything on to ``broker``."""

    def __init__(self, broker_id: int, broker: Address, observer: Observer) -> None:
        """Listen on a free port of this machine."""
        self.broker_id, self.broker, self.observer = broker_id, broker, observer
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._closed = False
        threading.Thread(target=self._accept, name=f"tap-{broker_id}", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections. Open connections end with either side."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, peer = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._open, args=(client, peer[1]), daemon=True).start()

    def _open(self, client: socket.socket, peer_port: int) -> None:
        try:
            broker = socket.create_connection((self.broker.host, self.broker.port), _CONNECT_S)
        except OSError:
            client.close()  # as at a broker that is down
            return
        broker.settimeout(None)
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _Link(self, client, broker, peer_port).run()


class _Link:
    """One connection through the proxy."""

    def __init__(self, tap: InspectingProxy, client: socket.socket, broker: socket.socket, peer_port: int) -> None:
        self._tap, self._client, self._broker, self._peer_port = tap, client, broker, peer_port
        self._under_way: dict[int, ObservedStep] = {}

    def run(self) -> None:
        """Pass on both directions until one ends; this thread handles the replies."""
        upward = threading.Thread(target=self._guard, args=(self._carry_requests,), daemon=True)
        upward.start()
        self._guard(self._carry_replies)
        upward.join()
        self._client.close()
        self._broker.close()

    def _guard(self, carry: Callable[[], None]) -> None:
        try:
            carry()
        except (OSError, Cut, ProtocolError):
            pass  # one side has closed, or the observer has cut it
        finally:
            for end in (self._client, self._broker):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _carry_requests(self) -> None:
        units = Units(CommandDecoder())
        while chunk := self._client.recv(_CHUNK_BYTES):
            for command, raw in units.feed(chunk):
                step = step_of(command)
                if step is not None and not isinstance(command, Quit):
                    sighting = ObservedStep(self._tap.broker_id, step, command, self._peer_port)
                    self._tap.observer.asked(sighting)
                    self._under_way[command.opaque] = sighting
                self._broker.sendall(raw)

    def _carry_replies(self) -> None:
        units = Units(ReplyDecoder())
        while chunk := self._broker.recv(_CHUNK_BYTES):
            for reply, raw in units.feed(chunk):
                sighting = self._under_way.pop(reply.opaque, None)
                if sighting is not None:
                    self._tap.observer.done(sighting, reply)
                self._client.sendall(raw)
                if sighting is not None:
                    self._tap.observer.answered(sighting)
