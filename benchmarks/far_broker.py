"""A network with a delay, for what is sent to a broker: shows how many round trips something waits for.

Bytes are passed on after the delay, in order, however many are under way: a request costs its sender the delay only if
it waits for the answer before it sends the next one. Connecting is not delayed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from metaq.model import Address

_CHUNK_BYTES = 1 << 18


@contextmanager
def far(address: Address, delay_s: float) -> Iterator[Address]:
    """Yield an address that leads to ``address``; what is sent there arrives ``delay_s`` later."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(target=_run, args=(listener, address, delay_s))
        process.start()
        try:
            yield Address("127.0.0.1", listener.getsockname()[1])
        finally:
            process.terminate()
            process.join()


def _run(listener: socket.socket, address: Address, delay_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    asyncio.run(_serve(listener, address, delay_s))


async def _serve(listener: socket.socket, address: Address, delay_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near, there = await asyncio.open_connection(address.host, address.port)
        await asyncio.gather(_pass_on(reader, there, delay_s), _pass_on(near, writer, 0))

    async with await asyncio.start_server(connected, sock=listener) as server:
        await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Pass everything on until the end, each chunk ``delay_s`` after it came."""
    loop = asyncio.get_running_loop()
    while chunk := await reader.read(_CHUNK_BYTES):
        loop.call_later(delay_s, writer.write, chunk) if delay_s else writer.write(chunk)
    loop.call_later(delay_s, writer.close)
