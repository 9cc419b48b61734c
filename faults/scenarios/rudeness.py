"""Rude clients, each a function that runs in a thread until it is stopped; and a slow but honest worker."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from faults.history import Put
from faults.load.worker import MetaqWorker, put_command
from metaq.backends.metaq.session import Session
from metaq.model import Address
from metaq.protocols.text.commands import Filled
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder
from metaq.protocols.text.encode import encode

SLOW_READERS, HALF_OPEN, GREEDY, RESETTING, CROWDS = 10, 10, 5, 3, 1
CROWD: Final = 100
GETS: Final = b"".join(b"get orders rude %d 0 1000000 %d\r\n" % (n % 3, n) for n in range(300))
QUESTIONS: Final = b"stats config 1\r\nversion 2\r\nstats offsets 3\r\n" * 500
BODY_BYTES: Final = 1_900_000
SEND_TIMEOUT_S: Final = 0.2
HONEST_TIMEOUT_S: Final = 20.0
TICK_S: Final = 0.02

Act = Callable[[Address, threading.Event], None]


@contextlib.contextmanager
def _connection(address: Address) -> Iterator[socket.socket]:
    """Yield a connection; errors of the connection are ignored."""
    with contextlib.suppress(OSError), socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before connecting, so that it takes effect
        connection.settimeout(SEND_TIMEOUT_S)
        connection.connect((address.host, address.port))
        yield connection


def read_slowly(address: Address, over: threading.Event) -> None:
    """Ask for hundreds of megabytes and read them byte by byte."""
    with _connection(address) as connection:
        connection.sendall(GETS)
        while not over.wait(TICK_S) and connection.recv(1):
            pass


def fall_silent(address: Address, over: threading.Event) -> None:
    """Send most of a large put, then nothing more."""
    with _connection(address) as connection:
        connection.settimeout(HONEST_TIMEOUT_S)
        connection.sendall(b"put orders 0 %d 0 1\r\n" % BODY_BYTES + bytes(BODY_BYTES - 1))
        over.wait()


def ask_and_never_read(address: Address, over: threading.Event) -> None:
    """Send small requests as long as they are accepted, and read no answer."""
    with _connection(address) as connection:
        while not over.is_set():
            try:
                connection.sendall(QUESTIONS)
            except TimeoutError:
                over.wait(TICK_S)


def disconnect(address: Address, over: threading.Event) -> None:
    """Ask, read a little, and reset the connection in the middle of an answer; repeatedly."""
    while not over.wait(TICK_S):
        with _connection(address) as connection:
            connection.sendall(GETS)
            connection.recv(1000)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def crowd(address: Address, over: threading.Event) -> None:
    """Open many connections and send nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(CROWD):
            stack.enter_context(_connection(address))
        over.wait()


RUDE_KINDS: Final[Sequence[Act]] = (
    *(read_slowly for _ in range(SLOW_READERS)),
    *(fall_silent for _ in range(HALF_OPEN)),
    *(ask_and_never_read for _ in range(GREEDY)),
    *(disconnect for _ in range(RESETTING)),
    *(crowd for _ in range(CROWDS)),
)


class Dribbler(MetaqWorker):
    """Puts like other workers, but sends its commands byte by byte, over a connection of its own."""

    def serve(self, session: Session) -> None:
        session.close()
        address = self.shift.address
        with contextlib.suppress(OSError), socket.create_connection((address.host, address.port)) as connection:
            connection.settimeout(HONEST_TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._dribble(connection)

    def _dribble(self, connection: socket.socket) -> None:
        decoder = ReplyDecoder()
        while not self.shift.over.is_set():
            partition_key, letter = self.partition_key(), self.small_letter()
            put = self.history.put_begins(self.lane, partition_key, (letter.sent,))
            for byte in encode(put_command(partition_key, letter)):
                connection.sendall(bytes((byte,)))
            self._answered(connection, decoder, put)

    def _answered(self, connection: socket.socket, decoder: ReplyDecoder, put: Put) -> None:
        while (reply := decoder.next_reply()) is NEED_DATA:
            chunk = connection.recv(1 << 16)
            if not chunk:
                raise ConnectionError("closed by the broker")
            decoder.receive_data(chunk)
        assert not isinstance(reply, Filled)  # no buffers were offered
        self.settle(put, reply)
