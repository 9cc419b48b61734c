"""Sessions of the remoting protocol on real connections: who asks, who answers, and what one client may cost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from fix_tls import Certificates
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.session import Call, RemotingLimits, RemotingServer, RemotingSession
from metaq_broker.serve.server import Server, bind
from metaq_broker.serve.session import ConnectionCounts
from waiting import in_loop, until

from metaq.errors import ConnectionFailed, DeadlineExceeded, FieldError, TooManyInFlight
from metaq.protocols.remoting.channel import ChannelLimits
from metaq.protocols.remoting.command import Codec, RemotingCommand, request
from metaq.protocols.remoting.frames import FrameDecoder, encode


@dataclass
class Limits:
    connections_max: int = 100
    pipelined_requests_max: int = 100
    output_bytes_max: int = 1 << 20
    buffered_bytes_max: int = 64 << 20
    idle_timeout_ms: int = 120_000
    tls_handshake_timeout_ms: int = 10_000


class Peer:
    """The other end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._decoder = FrameDecoder()
        self._arrived: list[RemotingCommand] = []

    async def send(self, *commands: RemotingCommand | bytes) -> None:
        for command in commands:
            self.writer.write(command if isinstance(command, bytes) else encode(command))
        await self.writer.drain()

    async def receive(self) -> RemotingCommand:
        while not self._arrived:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 20)
            assert data, "the server closed the connection"
            self._arrived += self._decoder.receive(data)
        return self._arrived.pop(0)

    async def closed(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(), 20) == b""
        except ConnectionResetError:
            return True


class Harness:
    """A server with three handlers: echo (1), hold (2, answered by ``release``) and fail (3)."""

    def __init__(self, limits: RemotingLimits | None) -> None:
        dispatcher = Dispatcher()
        dispatcher.add([1], lambda call: call.request.reply(0, body=call.request.body))
        dispatcher.add([2], self._hold)
        dispatcher.add([3, 4], self._fail)
        dispatcher.when_lost(lambda session: self.lost.append(session))
        self.held: list[Call] = []
        self.lost: list[RemotingSession] = []
        self.remoting = RemotingServer(dispatcher, limits)
        self.peers: list[Peer] = []
        self.counts = ConnectionCounts()
        self.port = 0
        self.server: Server | None = None

    async def stop(self, patience_s: float) -> None:
        """Stop the server, once."""
        server, self.server = self.server, None
        if server is not None:
            await server.stop(patience_s)

    def _hold(self, call: Call) -> None:
        self.held.append(call)

    def _fail(self, call: Call) -> RemotingCommand:
        raise FieldError("X", "field", "v", "w") if call.request.code == 3 else KeyError("broken")

    async def asking(self, code: int) -> tuple[Peer, RemotingSession, asyncio.Future[RemotingCommand]]:
        """A new client, its session, and a request that the session has sent to it."""
        peer = await self.connect()
        session = await self.session()
        return peer, session, session.call(request(code), 20.0)

    async def connect(self, context: ssl.SSLContext | None = None) -> Peer:
        name = None if context is None else "localhost"
        streams = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name)
        self.peers.append(Peer(*streams))
        return self.peers[-1]

    async def session(self) -> RemotingSession:
        """The only session, when there is one."""
        await until(lambda: len(self.remoting.sessions) == 1)
        return next(iter(self.remoting.sessions))


@asynccontextmanager
async def serving(
    limits: RemotingLimits | None = None, net: Limits | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Harness]:
    harness = Harness(limits)
    server = Server(harness.remoting.session, net or Limits(), harness.counts, lambda: 0, tls, tls_optional=True)
    listener = bind("127.0.0.1", 0)
    harness.port = listener.getsockname()[1]
    harness.server = server
    await server.start(listener)
    try:
        yield harness
    finally:
        for peer in harness.peers:
            peer.writer.close()
        await harness.stop(0.1)
        harness.remoting.stop()


@in_loop
async def test_answers_leave_as_they_are_ready() -> None:
    async with serving() as harness:
        peer = await harness.connect()
        await peer.send(request(2, opaque=1), request(1, opaque=2, body=b"x"), request(2, opaque=3))
        assert (await peer.receive()).opaque == 2
        for call in reversed(harness.held):
            call.answer(call.request.reply(7))
            call.answer(call.request.reply(8))  # the second is none
        assert [(await peer.receive()).opaque for _ in range(2)] == [3, 1]
        await peer.send(request(1, opaque=4))
        assert (await peer.receive()).opaque == 4


@pytest.mark.parametrize("codec", Codec)
@in_loop
async def test_errors_and_unknown_codes_are_answered_in_the_codec_of_the_request(codec: Codec) -> None:
    async with serving() as harness:
        peer = await harness.connect()
        await peer.send(*(request(code, opaque=code, codec=codec) for code in (3, 4, 999)))
        got = [await peer.receive() for _ in range(3)]
        assert [(each.code, each.opaque, each.codec) for each in got] == [
            (1, 3, codec),
            (1, 4, codec),
            (3, 999, codec),
        ]
        assert got[0].remark == "field 'field' of X is 'v'; it must be w"
        assert got[1].remark == "KeyError: 'broken'"
        assert got[2].remark == " request type 999 not supported"


@in_loop
async def test_oneways_get_no_answer_whatever_happens() -> None:
    async with serving() as harness:
        peer = await harness.connect()
        await peer.send(*(request(code, oneway=True) for code in (1, 2, 3, 999)), request(1, opaque=5))
        assert (await peer.receive()).opaque == 5
        harness.held[0].answer(harness.held[0].request.reply())
        await peer.send(request(1, opaque=6))
        assert (await peer.receive()).opaque == 6


@in_loop
async def test_who_ends_its_side_gets_what_is_ready_and_no_more() -> None:
    """As with Java's servers: otherwise a client that is gone would keep what it waited for."""

    async with serving() as harness:
        peer = await harness.connect()
        await peer.send(request(2, opaque=1), request(1, opaque=2))
        peer.writer.write_eof()
        assert (await peer.receive()).opaque == 2
        assert await peer.closed()


class TestTheServerAsks:
    @in_loop
    async def test_with_numbers_of_its_own(self) -> None:
        async with serving() as harness:
            peer, session, future = await harness.asking(307)
            session.oneway(request(40))
            asked, reported = await peer.receive(), await peer.receive()
            assert (asked.code, asked.is_oneway, reported.code, reported.is_oneway) == (307, False, 40, True)
            await peer.send(request(1, opaque=asked.opaque), asked.reply(0, body=b"info"))
            assert (await future).body == b"info"
            assert (await peer.receive()).opaque == asked.opaque

    @in_loop
    async def test_and_waits_no_longer_than_it_wants_to(self) -> None:
        async with serving() as harness:
            await harness.connect()
            session = await harness.session()
            with pytest.raises(DeadlineExceeded):
                await session.call(request(307), 0.01)
            assert harness.remoting.own_requests.count == 0

    @in_loop
    async def test_and_knows_when_the_client_is_gone(self) -> None:
        async with serving() as harness:
            peer, session, future = await harness.asking(307)
            peer.writer.close()
            with pytest.raises(ConnectionFailed, match="the client is gone"):
                await future
            with pytest.raises(ConnectionFailed):
                session.call(request(307), 20.0)
            assert harness.lost == [session]
            assert harness.remoting.own_requests.count == 0

    @in_loop
    async def test_within_limits(self) -> None:
        limits = RemotingLimits(own=ChannelLimits(2, 2), own_max=3)
        async with serving(limits) as harness:
            await harness.connect()
            await until(lambda: len(harness.remoting.sessions) == 1)
            await harness.connect()
            await until(lambda: len(harness.remoting.sessions) == 2)
            one, two = harness.remoting.sessions
            futures = [one.call(request(307), 60.0), one.call(request(307), 60.0), two.call(request(307), 60.0)]
            for session, count in ((one, 2), (two, 3)):
                with pytest.raises(TooManyInFlight, match=f"{count} are in flight"):
                    session.call(request(307), 60.0)
            for future in futures:
                future.cancel()


class TestHostileClients:
    @pytest.mark.parametrize(
        "garbage", [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", encode(request(1)).replace(b"{", b"[")]
    )
    @in_loop
    async def test_what_is_no_frame_ends_the_connection_behind_what_was_asked(self, garbage: bytes) -> None:
        async with serving() as harness:
            peer, other = await harness.connect(), await harness.connect()
            await peer.send(request(1, opaque=1), garbage, request(1, opaque=2))
            assert (await peer.receive()).opaque == 1
            assert await peer.closed()
            await other.send(request(1, opaque=3))
            assert (await other.receive()).opaque == 3

    @in_loop
    async def test_a_frame_above_the_limit_is_refused_before_it_is_received(self) -> None:
        async with serving(RemotingLimits(frame_bytes_max=1000)) as harness:
            peer = await harness.connect()
            await peer.send((1000).to_bytes(4, "big") + b"\x00\x00\x00\x10")
            assert await peer.closed()

    @in_loop
    async def test_who_takes_no_answers_is_not_read_from(self) -> None:
        async with serving() as harness:
            peer, other = await harness.connect(), await harness.connect()
            flood = asyncio.create_task(peer.send(*(request(1, opaque=n, body=bytes(100_000)) for n in range(400))))
            for n in range(50):
                await other.send(request(1, opaque=n))
                assert (await other.receive()).opaque == n
            assert not flood.done()  # 40 MB that nobody takes
            assert max(session.decoder.pending_bytes for session in harness.remoting.sessions) < 1 << 20
            for n in range(400):
                assert (await peer.receive()).opaque == n
            await flood

    @in_loop
    async def test_requests_that_are_not_answered_are_limited_for_each_and_for_all(self) -> None:
        async with serving(RemotingLimits(requests_max=15), Limits(pipelined_requests_max=10)) as harness:
            one, two = await harness.connect(), await harness.connect()
            await one.send(*(request(2, opaque=n) for n in range(20)))
            await until(lambda: len(harness.held) == 10)  # the others wait in the socket
            await two.send(*(request(2, opaque=n) for n in range(6)))
            busy = await two.receive()
            assert (busy.code, busy.opaque) == (2, 5)
            assert len(harness.held) == 15
            for call in harness.held[:10]:
                call.answer(call.request.reply())
            assert [(await one.receive()).opaque for _ in range(10)] == list(range(10))
            await until(lambda: len(harness.held) == 25 and harness.remoting.requests == 15)

    @in_loop
    async def test_unanswered_requests_of_who_left_count_no_more(self) -> None:
        async with serving() as harness:
            peer = await harness.connect()
            await peer.send(*(request(2, opaque=n) for n in range(9)))
            await until(lambda: harness.remoting.requests == 9)
            peer.writer.close()
            await until(lambda: harness.remoting.requests == 0)
            harness.held[0].answer(harness.held[0].request.reply())
            assert harness.remoting.requests == 0

    @in_loop
    async def test_idle_connections_are_closed(self) -> None:
        async with serving(net=Limits(idle_timeout_ms=100)) as harness:
            assert await (await harness.connect()).closed()


class TestTlsByTheFirstByte:
    @in_loop
    async def test_one_port_serves_both(self, server_context: ssl.SSLContext, certificates: Certificates) -> None:
        async with serving(tls=server_context) as harness:
            trusting = ssl.create_default_context(cafile=certificates.ca_file)
            for peer in (await harness.connect(), await harness.connect(trusting)):
                body = bytes(300_000)
                await peer.send(request(1, opaque=1, body=body))
                assert (await peer.receive()).body == body
            assert harness.counts.connections == 2

    @in_loop
    async def test_a_frame_byte_by_byte(self, server_context: ssl.SSLContext) -> None:
        async with serving(tls=server_context) as harness:
            peer = await harness.connect()
            for byte in encode(request(1, opaque=1)):
                await peer.send(bytes([byte]))
            assert (await peer.receive()).opaque == 1

    @in_loop
    async def test_who_says_nothing_counts_and_is_closed(self, server_context: ssl.SSLContext) -> None:
        async with serving(net=Limits(idle_timeout_ms=300), tls=server_context) as harness:
            silent, gone = await harness.connect(), await harness.connect()
            await until(lambda: harness.counts.connections == 2)
            gone.writer.close()
            await until(lambda: harness.counts.connections < 2)
            assert await silent.closed()
            await until(lambda: harness.counts.connections == 0)

    @in_loop
    async def test_a_handshake_that_is_none_ends_that_connection(self, server_context: ssl.SSLContext) -> None:
        async with serving(tls=server_context) as harness:
            peer = await harness.connect()
            await peer.send(b"\x16" + bytes(100))
            await peer.closed()
            await until(lambda: harness.counts.connections == 0)
            other = await harness.connect()
            await other.send(request(1, opaque=1))
            assert (await other.receive()).opaque == 1


def test_a_code_has_one_handler() -> None:
    dispatcher = Dispatcher()
    dispatcher.add([11], lambda call: None)
    with pytest.raises(ValueError, match=r"request PULL_MESSAGE \(11\) has a handler already"):
        dispatcher.add([10, 11], lambda call: None)


# ---- the end of the server


@in_loop
async def test_a_stop_answers_what_is_carried_out_and_reads_no_more() -> None:
    async with serving() as harness:
        peer, idle = await harness.connect(), await harness.connect()
        await peer.send(request(2, opaque=1), request(2, opaque=2))
        await until(lambda: len(harness.held) == 2)
        stopping = asyncio.create_task(harness.stop(20))
        assert await idle.closed()
        idle.writer.close()
        await peer.send(request(1, opaque=3))
        harness.held[0].answer(harness.held[0].request.reply(7))
        first = await peer.receive()
        assert (first.opaque, first.code, stopping.done()) == (1, 7, False)
        harness.held[1].answer(harness.held[1].request.reply(8))
        second = await peer.receive()
        assert (second.opaque, second.code) == (2, 8)
        assert await peer.closed()
        peer.writer.close()
        await stopping
        assert len(harness.lost) == 2


@in_loop
async def test_a_stop_does_not_wait_for_a_client_that_stays() -> None:
    async with serving() as harness:
        peer = await harness.connect()
        await peer.send(request(2, opaque=1))
        await until(lambda: bool(harness.held))
        began = asyncio.get_running_loop().time()
        await harness.stop(0.2)  # nobody answers
        assert asyncio.get_running_loop().time() - began < 5
        assert await peer.closed()


@in_loop
async def test_a_stop_ends_what_clients_were_asked() -> None:
    async with serving() as harness:
        _, session, asked = await harness.asking(9)
        harness.remoting.stop()
        with pytest.raises(DeadlineExceeded):
            await asked
        with pytest.raises(DeadlineExceeded):
            await session.call(request(9), 20.0)
