"""Clients that stop in the middle: of a TLS handshake, of a frame, of taking what they asked for."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

from condition_pulls import Asked, pull
from fix_tls import Certificates
from metaq_broker.rocketmq.session import RemotingServer
from metaq_broker.serve.server import Server, bind
from metaq_broker.serve.session import ConnectionCounts
from remoting_brokers import WaitingBroker, play
from test_remoting_session import Limits, Peer, serving
from waiting import in_loop, until

from metaq.protocols.remoting.command import request
from metaq.protocols.remoting.frames import encode

EACH = 100


def client_hello(certificates: Certificates) -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=certificates.ca_file)
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@in_loop
async def test_200_of_them_keep_nobody_out(server_context: ssl.SSLContext, certificates: Certificates) -> None:
    hello = client_hello(certificates)
    frame = encode(request(1, opaque=1, body=bytes(1000)))
    net = Limits(connections_max=2 * EACH + 2, tls_handshake_timeout_ms=3000)
    async with serving(net=net, tls=server_context) as harness:
        for part in (hello[: len(hello) // 2], frame[: len(frame) // 2]):
            for _ in range(EACH):
                peer = await harness.connect()
                await peer.send(part)
        for context in (None, ssl.create_default_context(cafile=certificates.ca_file)):
            peer = await harness.connect(context)
            await peer.send(frame)
            assert (await peer.receive()).opaque == 1
        await until(lambda: harness.counts.connections == EACH + 2)  # the handshakes have taken too long
        assert harness.server is not None
        net.idle_timeout_ms = 1
        harness.server._close_idle()
        await until(lambda: harness.counts.connections == 0)


def test_waiting_pulls_whose_answers_nobody_takes(tmp_path: Path) -> None:
    """Each message is in the answers of all of them; that connection is ended before the others have no memory."""

    async def scenario(broker: WaitingBroker) -> None:
        asked = Asked(broker)
        asked.held._held_max = asked.held._per_connection_max = 1000
        remoting = RemotingServer(broker.dispatcher)
        net = Limits(pipelined_requests_max=2000, buffered_bytes_max=8 << 20)
        counts = ConnectionCounts()
        server, listener = Server(remoting.session, net, counts, lambda: 0), bind("127.0.0.1", 0)
        port = listener.getsockname()[1]
        await server.start(listener)
        greedy, other = [Peer(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(2)]
        await broker.stored(bytes(10))
        await greedy.send(*(encode(pull(offset=1, wait_ms=60_000, text="*", kind="TAG")) for _ in range(200)))
        await until(lambda: asked.held.held == 200)
        for _ in range(3):
            await broker.stored(bytes(100_000))  # in 200 answers
            await other.send(encode(pull(text="*", kind="TAG")))
            assert (await other.receive()).code == 0
        await until(lambda: asked.held.held == 0 and len(remoting.sessions) == 1)
        assert server._buffered_bytes < 1 << 20
        for peer in (greedy, other):
            peer.writer.close()
        await server.stop(0.1)
        remoting.stop()

    play(tmp_path, scenario, more="[rocketmq]\nenabled=true\n")
