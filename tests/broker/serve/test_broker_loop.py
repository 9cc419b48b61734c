"""The loop of a broker: it serves sockets of clients itself, and all else as asyncio's own loop does."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from selectors import EVENT_READ, EVENT_WRITE

import pytest
from metaq_broker.log.sync.loop_steps import LoopStep
from metaq_broker.serve.broker_loop import IN, BrokerLoop, SocketSelector, new_loop

pytestmark = pytest.mark.skipif(not SocketSelector.is_supported(), reason="this system has no epoll")

DEADLINE_S = 60.0


class Watched:
    """Receives from a socket, and does more then."""

    def __init__(
        self, watched: socket.socket, loop: asyncio.AbstractEventLoop, failure: Exception | None = None
    ) -> None:
        self.received: list[bytes] = []
        self.all_in_step: list[str] = []
        self._socket, self._loop, self._failure = watched, loop, failure

    def ready(self, _events: int, /) -> None:
        """Take what is there."""
        self.received.append(self._socket.recv(100))
        LoopStep.of(self._loop).at_end(lambda: self.all_in_step.append("end of the step"))
        self._loop.call_soon(self.all_in_step.append, "next")
        if self._failure is not None:
            raise self._failure


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection."""
    ends = socket.socketpair()
    for each in ends:
        each.setblocking(False)
    yield ends
    for each in ends:
        each.close()


def run(work: object) -> None:
    """Run a coroutine on a loop of a broker."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(work, DEADLINE_S))  # type: ignore[arg-type]


def test_a_socket_is_notified_and_its_rest_done_in_the_same_round(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, BrokerLoop)
        watched = Watched(pair[0], loop)
        loop.sockets.watch(pair[0].fileno(), 0, IN, watched)
        pair[1].send(b"a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert watched.received == [b"a"]
        assert watched.all_in_step == ["end of the step", "next"]
        loop.sockets.watch(pair[0].fileno(), IN, 0, watched)
        pair[1].send(b"b")
        await asyncio.sleep(0.01)
        assert watched.received == [b"a"]

    run(work())


def test_what_a_socket_raises_is_reported_and_the_loop_goes_on(pair: tuple[socket.socket, socket.socket]) -> None:
    async def work() -> None:
        loop, problems = asyncio.get_running_loop(), []
        assert isinstance(loop, BrokerLoop)
        loop.set_exception_handler(lambda _loop, context: problems.append(context["exception"]))
        failure = ZeroDivisionError("a defect")
        watched = Watched(pair[0], loop, failure)
        loop.sockets.watch(pair[0].fileno(), 0, IN, watched)
        pair[1].send(b"a")
        await asyncio.sleep(0.01)
        assert (watched.received, problems) == ([b"a"], [failure])
        loop.sockets.watch(pair[0].fileno(), IN, 0, watched)

    run(work())


def test_asyncios_own_connections_threads_and_timers_work() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"question\n")
        assert await reader.readline() == b"QUESTION\n"
        writer.close()
        server.close()
        await server.wait_closed()
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        threading.Thread(target=lambda: loop.call_soon_threadsafe(called.set)).start()
        await called.wait()
        before = loop.time()
        await asyncio.sleep(0.02)
        assert loop.time() - before >= 0.02

    run(work())


def test_a_reader_that_is_removed_while_the_loop_looks_is_not_called(pair: tuple[socket.socket, socket.socket]) -> None:
    class Ending(Watched):
        """Ends a reader of asyncio's that is ready in the same look."""

        def ready(self, events: int, /) -> None:
            super().ready(events)
            self._loop.remove_reader(other)

    async def work() -> None:
        loop, called = asyncio.get_running_loop(), []
        assert isinstance(loop, BrokerLoop)
        os.write(written, b"x")
        pair[1].send(b"a")
        ending = Ending(pair[0], loop)
        loop.sockets.watch(pair[0].fileno(), 0, IN, ending)
        loop.add_reader(other, called.append, "a reader that is gone")
        await asyncio.sleep(0.01)
        assert ending.received == [b"a"]
        assert called == []
        loop.sockets.watch(pair[0].fileno(), IN, 0, ending)

    other, written = os.pipe()
    try:
        run(work())
    finally:
        os.close(other)
        os.close(written)


def test_it_is_a_selector_like_others(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    with closing(SocketSelector()) as selector:
        key = selector.register(left, EVENT_READ, "data")
        assert selector.select(0) == []
        with pytest.raises(KeyError, match="registered already"):
            selector.register(left.fileno(), EVENT_READ)
        right.send(b"a")
        assert selector.select(1) == [(key, EVENT_READ)]
        changed = selector.modify(left, EVENT_READ | EVENT_WRITE, "more")
        assert selector.select() == [(changed, EVENT_READ | EVENT_WRITE)]
        assert selector.modify(left, EVENT_READ | EVENT_WRITE, "data").data == "data"
        assert dict(selector.get_map()) == {left.fileno(): selector.get_key(left)}
        assert selector.unregister(left).data == "data"
        with pytest.raises(KeyError, match="not registered"):
            selector.get_key(left)
        assert selector.select(0.001) == []


def test_a_socket_that_was_closed_before_is_unregistered_all_the_same() -> None:
    left, right = socket.socketpair()
    with closing(SocketSelector()) as selector, right:
        selector.register(left, EVENT_READ)
        left.close()
        selector.unregister(left)
        assert not selector.get_map()
        with pytest.raises(ValueError, match="is closed"):
            selector.register(left, EVENT_READ)
