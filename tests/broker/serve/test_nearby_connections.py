"""What the broker does with a connection whose other end is on its machine."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from metaq_broker.loop_step import LoopStep
from metaq_broker.serve.block_buffers import BlockBuffers
from metaq_broker.serve.connection import Connection
from metaq_broker.serve.fair_queue import FairQueue
from metaq_broker.text.session import TextSession


def server(loop: asyncio.AbstractEventLoop) -> Any:
    """As much of a server as a connection needs that asks for its version."""
    system = SimpleNamespace(line_bytes_max=1000, batch_bytes_max=1000)
    engine = SimpleNamespace(config=SimpleNamespace(system=system))
    transactions = SimpleNamespace(connection_lost=lambda owner: None)
    services: Any = SimpleNamespace(
        member=None,
        engine=engine,
        buffers=BlockBuffers(),
        version="1",
        transactions=transactions,
        texts=None,
    )
    return SimpleNamespace(
        loop=loop,
        limits=SimpleNamespace(pipelined_requests_max=1000, output_bytes_max=1 << 20),
        sessions=lambda replies, client: TextSession(services, replies, client.peer),
        received=memoryview(bytearray(1 << 17)),
        names_of=lambda transport: None,
        opened=lambda connection: None,
        closed=lambda connection: None,
        holds=lambda connection, buffered_bytes: None,
        queue=FairQueue(loop),
        step=LoopStep(loop),
    )


def talk(own: str, peer: str) -> bytes:
    """Ask a broker at one address for its version, from another address; return the reply."""

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Connection(server(loop)), own, 0)
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(own, port, local_addr=(peer, 0))
        writer.write(b"version 1\r\n")
        reply = await reader.readuntil(b"\r\n")
        writer.close()
        await writer.wait_closed()
        listening.close()
        await listening.wait_closed()
        return reply

    return asyncio.run(run())


@pytest.fixture
def unpaced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sockets that the broker had no longer paced."""
    seen: list[Any] = []
    monkeypatch.setattr("metaq_broker.serve.connection.disable_pacing", lambda connected: seen.append(connected.family))
    return seen


def test_a_connection_within_the_machine_is_not_paced(unpaced: list[Any]) -> None:
    assert talk("127.0.0.1", "127.0.0.1") == b"result 200 1 1\r\n"
    assert unpaced == [socket.AF_INET]


def test_a_connection_from_another_address_stays_as_it_is(unpaced: list[Any]) -> None:
    assert talk("127.0.0.1", "127.0.0.2") == b"result 200 1 1\r\n"
    assert unpaced == []
