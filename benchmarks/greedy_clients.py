"""Greedy clients in a process of their own, and an honest one that waits for every answer, for ``fairness``.

A greedy connection sends the same request repeatedly, as often as the broker accepts it. It reads the answers and keeps
a number of requests in flight, or it never reads. An honest client sends a request, waits for its answer, sends the
next.

The processes are bound to cores, so that the broker's scheduling is measured, not the system's: the broker has one
core, all clients another one, and greedy clients have a lower priority there, so that the honest one runs as soon as
its answer arrives. On a machine with one core, nothing is bound.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import selectors
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from metaq.net.loopback import disable_pacing
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.frames import FrameDecoder
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

DEADLINE_S: Final = 120.0
CHUNK_BYTES: Final = 1 << 18
NICE: Final = 10
NOT_NOW: Final = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError


@dataclass(frozen=True, slots=True)
class Greedy:
    """``connections`` connections that send ``request`` to ``port``.

    ``window`` requests of each are in flight, and answers are read: each has ``mark`` in it once. Without a ``mark``,
    answers are not read, and a connection sends ``window`` requests in total, or without end if that is 0. ``tls``:
    over TLS.
    """

    port: int
    request: bytes
    connections: int
    window: int
    mark: bytes | None = None
    tls: bool = False


def pin(pid: int, core: int) -> None:
    """Bind a process, with its threads, to one core."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), {core})


def connect(port: int, tls: bool) -> socket.socket:
    """Return a connection with the options of this project's clients: small sends are not delayed."""
    made = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    disable_pacing(made)
    if not tls:
        return made
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its authority is made for this run
    return context.wrap_socket(made)


class _Connection:
    """A greedy connection: the rest of its data, and how many answers it has read."""

    def __init__(self, greedy: Greedy) -> None:
        self.socket = connect(greedy.port, greedy.tls)
        self.socket.setblocking(False)
        self._greedy = greedy
        self._chunk = greedy.request * max(1, CHUNK_BYTES // len(greedy.request))
        self._left_bytes = len(greedy.request) * greedy.window if greedy.window else None
        self._sent = 0  # position in the chunk, which ends at the end of a request
        self._tail = b""
        self.answered = 0

    @property
    def events(self) -> int:
        writes = selectors.EVENT_WRITE if self._left_bytes is None or self._left_bytes > 0 else 0
        return (selectors.EVENT_READ if self._greedy.mark is not None else 0) | writes

    def write(self) -> None:
        end = len(self._chunk)
        if self._left_bytes is not None:
            end = min(end, self._sent + self._left_bytes)
        with contextlib.suppress(*NOT_NOW):
            sent = self.socket.send(memoryview(self._chunk)[self._sent : end])
            self._sent = (self._sent + sent) % len(self._chunk)
            if self._left_bytes is not None:
                self._left_bytes -= sent

    def read(self) -> None:
        assert self._greedy.mark is not None
        with contextlib.suppress(*NOT_NOW):
            data = self._receive()
            if not data:
                raise SystemExit("the broker has closed a greedy connection")
            data = self._tail + data
            now = data.count(self._greedy.mark)
            self._tail = data[-(len(self._greedy.mark) - 1) :]
            self.answered += now
            assert self._left_bytes is not None
            self._left_bytes += now * len(self._greedy.request)

    def _receive(self) -> bytes:
        """Return what has come; of TLS all of it, as the selector does not know what was decrypted."""
        data = self.socket.recv(CHUNK_BYTES)
        while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            data += self.socket.recv(CHUNK_BYTES)
        return data


def _be_greedy(greedy: Greedy, core: int, begun: Event, end: Event, answered: multiprocessing.SimpleQueue[int]) -> None:
    os.nice(NICE)
    pin(os.getpid(), core)
    connections = [_Connection(greedy) for _ in range(greedy.connections)]
    with selectors.DefaultSelector() as selector:
        known = {each.socket.fileno(): 0 for each in connections}
        for each in connections:
            known[each.socket.fileno()] = each.events
            selector.register(each.socket, each.events, each)
        begun.set()
        while not end.is_set():
            for key, events in selector.select(0.1):
                each = key.data
                if events & selectors.EVENT_READ:
                    each.read()
                if events & selectors.EVENT_WRITE:
                    each.write()
                if (wanted := each.events) != key.events:
                    if wanted:
                        selector.modify(each.socket, wanted, each)
                    else:
                        selector.unregister(each.socket)
    answered.put(sum(each.answered for each in connections))
    for each in connections:
        each.socket.close()


@contextmanager
def greedy_clients(greedy: Greedy, core: int, answered: list[int]) -> Iterator[None]:
    """Run the greedy connections, all of which are open when the block begins; then add the number of answers to
    ``answered``.
    """
    context = multiprocessing.get_context("spawn")
    begun, end, count = context.Event(), context.Event(), context.SimpleQueue()
    process = context.Process(target=_be_greedy, args=(greedy, core, begun, end, count))
    process.start()
    try:
        if not begun.wait(DEADLINE_S):
            raise SystemExit("the greedy connections were not opened in time")
        yield
    finally:
        end.set()
    answered.append(count.get())
    process.join(DEADLINE_S)


class HonestClient:
    """One connection that waits for every answer. ``request`` is answered in MetaQ's or RocketMQ's protocol."""

    def __init__(self, port: int, request: bytes, *, is_rocketmq: bool, tls: bool) -> None:
        self._request, self._is_rocketmq = request, is_rocketmq
        self._socket = connect(port, tls)
        self._replies, self._frames = ReplyDecoder(), FrameDecoder()

    def close(self) -> None:
        self._socket.close()

    def waits_ms(self, lasts_s: float) -> list[float]:
        """Return the milliseconds from each request to its answer; a refused request is sent again."""
        took_ms: list[float] = []
        end = time.monotonic() + lasts_s
        while time.monotonic() < end or not took_ms:
            start = time.perf_counter()
            while not self._is_done():
                pass
            took_ms.append((time.perf_counter() - start) * 1000)
        return took_ms

    def _is_done(self) -> bool:
        self._socket.sendall(self._request)
        while True:
            if not (chunk := self._socket.recv(1 << 16)):
                raise SystemExit("the broker has closed the honest connection")
            if self._is_rocketmq:
                for answer in self._frames.receive(chunk):
                    return answer.code == ResponseCode.SUCCESS
                continue
            self._replies.receive_data(chunk)
            if (reply := self._replies.next_reply()) is not NEED_DATA:
                return getattr(reply, "code", 200) == 200
