"""Transports on one epoll do what asyncio's do: receive, pause, keep what the socket does not take, close, fail."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from metaq_broker.serve.socket_transport import SocketTransport, SocketWatch
from waiting import in_loop, until

DEADLINE_S = 60.0
LARGE = bytes(range(256)) * (1 << 14)
"""More than a socket takes at once."""


class Recorder(asyncio.BufferedProtocol):
    """Keeps what it is told."""

    def __init__(self, *, keep_open: bool = False, broken: bool = False) -> None:
        self.received = bytearray()
        self.events: list[str] = []
        self.error: Exception | None = None
        self._buffer = bytearray(1000)
        self._keep_open, self._broken = keep_open, broken

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SocketTransport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._broken:
            raise ZeroDivisionError("a defect")
        self.received += self._buffer[:nbytes]

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self._keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.error = exc


@asynccontextmanager
async def connected(*protocols: Recorder) -> AsyncIterator[tuple[SocketWatch, list[socket.socket]]]:
    """The other ends of connections of these protocols."""
    watch, clients = SocketWatch(asyncio.get_running_loop()), []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for protocol in protocols:
            clients.append(socket.create_connection(listener.getsockname()))
            clients[-1].setblocking(False)
            watch.connect(listener.accept()[0], protocol)
    try:
        yield watch, clients
    finally:
        for each in protocols:
            each.transport.abort()
        await until(lambda: all("lost" in each.events for each in protocols))
        watch.close()
        for client in clients:
            client.close()


async def received(client: socket.socket, count: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    async with asyncio.timeout(DEADLINE_S):
        while len(data) < count and (more := await loop.sock_recv(client, 1 << 20)):
            data += more
    return data


@in_loop
async def test_what_arrives_is_received_and_an_answer_sent() -> None:
    protocol = Recorder()
    async with connected(protocol) as (_, [client]):
        client.send(b"question")
        await until(lambda: protocol.received == b"question")
        protocol.transport.write(b"answer")
        assert await received(client, 6) == b"answer"
        assert protocol.transport.get_extra_info("peername") == client.getsockname()
        assert protocol.transport.get_extra_info("sockname") == client.getpeername()
        assert protocol.transport.get_extra_info("ssl_object") is None


@in_loop
async def test_nothing_is_received_while_reading_is_paused() -> None:
    protocol, other = Recorder(), Recorder()
    async with connected(protocol, other) as (_, [client, other_client]):
        protocol.transport.pause_reading()
        assert not protocol.transport.is_reading()
        client.send(b"a")
        other_client.send(b"b")
        await until(lambda: other.received)
        assert not protocol.received
        protocol.transport.resume_reading()
        await until(lambda: protocol.received == b"a")


@in_loop
async def test_the_protocol_pauses_until_all_bytes_are_in_the_socket() -> None:
    protocol = Recorder()
    async with connected(protocol) as (_, [client]):
        protocol.transport.write(LARGE)
        assert protocol.events == ["pause"]
        waiting = protocol.transport.get_write_buffer_size()
        assert 0 < waiting < len(LARGE)
        protocol.transport.write(b"behind")
        assert protocol.transport.get_write_buffer_size() == waiting + 6
        assert await received(client, len(LARGE) + 6) == LARGE + b"behind"
        await until(lambda: protocol.events == ["pause", "resume"])
        assert not protocol.transport.get_write_buffer_size()


@in_loop
async def test_closing_sends_the_rest_first_and_aborting_does_not() -> None:
    closed, aborted = Recorder(), Recorder()
    async with connected(closed, aborted) as (_, [client, other]):
        for protocol in (closed, aborted):
            protocol.transport.write(LARGE)
        closed.transport.close()
        aborted.transport.abort()
        assert closed.transport.is_closing()
        assert aborted.transport.is_closing()
        assert await received(client, len(LARGE) + 1) == LARGE
        assert len(await received(other, len(LARGE) + 1)) < len(LARGE)
        await until(lambda: closed.events == ["pause", "lost"] and aborted.events == ["pause", "lost"])
        closed.transport.write(b"for nobody")


@pytest.mark.parametrize("keep_open", [True, False])
@in_loop
async def test_the_protocol_decides_what_the_end_of_the_input_means(keep_open: bool) -> None:
    protocol = Recorder(keep_open=keep_open)
    async with connected(protocol) as (_, [client]):
        client.send(b"last")
        client.shutdown(socket.SHUT_WR)
        await until(lambda: "eof" in protocol.events)
        assert protocol.received == b"last"
        if keep_open:
            protocol.transport.write(b"answer")
            assert await received(client, 6) == b"answer"
        else:
            await until(lambda: protocol.events == ["eof", "lost"])
            assert await received(client, 1) == b""


@in_loop
async def test_a_reset_ends_the_connection_once_and_is_no_defect() -> None:
    protocol, faults = Recorder(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with connected(protocol) as (_, [client]):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await until(lambda: protocol.events == ["lost"])
        assert isinstance(protocol.error, ConnectionResetError)
    assert protocol.events == ["lost"]
    assert not faults


@in_loop
async def test_a_protocol_defect_ends_its_connection_alone() -> None:
    broken, well, faults = Recorder(broken=True), Recorder(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
    async with connected(broken, well) as (_, [client, other]):
        client.send(b"a")
        other.send(b"b")
        await until(lambda: "lost" in broken.events and well.received)
        assert not well.events
    assert [type(each) for each in faults] == [ZeroDivisionError]


@in_loop
async def test_the_end_of_a_paused_connection_does_not_wake_the_loop() -> None:
    protocol, other = Recorder(), Recorder()
    async with connected(protocol, other) as (watch, [client, other_client]):
        protocol.transport.pause_reading()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        other_client.send(b"b")
        await until(lambda: other.received)
        assert not protocol.events
        assert watch.transports == [other.transport]


@in_loop
async def test_a_connection_that_another_one_ends_in_the_same_step_is_not_served() -> None:
    class Ending(Recorder):
        """Ends the other one when it receives something."""

        other: Recorder

        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self.other.transport.abort()

    first, second = Ending(), Ending()
    first.other, second.other = second, first
    async with connected(first, second) as (_, clients):
        for client in clients:
            client.send(b"x")
        await until(lambda: "lost" in first.events + second.events)
        assert len(first.received + second.received) == 1


@in_loop
async def test_limits_that_cannot_be_kept_are_refused() -> None:
    protocol = Recorder()
    async with connected(protocol):
        protocol.transport.set_write_buffer_limits(high=0, low=0)
        with pytest.raises(ValueError, match="only 0"):
            protocol.transport.set_write_buffer_limits(high=1)


@in_loop
async def test_the_end_may_be_sent_alone_and_what_arrives_is_still_received() -> None:
    protocol = Recorder()
    async with connected(protocol) as (_, [client]):
        transport = protocol.transport
        assert transport.can_write_eof()
        transport.write(LARGE)
        with pytest.raises(RuntimeError, match="bytes are not sent yet"):
            transport.write_eof()
        loop, received = asyncio.get_running_loop(), 0
        while received < len(LARGE):
            received += len(await loop.sock_recv(client, 1 << 20))
        await until(lambda: "resume" in protocol.events)
        transport.write_eof()
        assert await loop.sock_recv(client, 10) == b""
        await loop.sock_sendall(client, b"late")
        await until(lambda: bytes(protocol.received) == b"late")
        client.close()
        await until(lambda: protocol.events[-1] == "lost")
        assert protocol.error is None
