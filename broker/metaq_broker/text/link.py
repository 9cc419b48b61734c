"""A connection from this broker to another one on the event loop: many requests in flight, each with a deadline.

When the connection fails, all waiting callers get ``PeerLost``; then open another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable
from typing import Final

from metaq.errors import ProtocolError
from metaq.model import INT32_MAX, Address
from metaq.net.identification import METAQ, TLS, identify
from metaq.net.loopback import disable_pacing
from metaq.protocols.text.commands import Command, Filled, Reply, Result, Stats, Version
from metaq.protocols.text.decode import LINE_BYTES_MAX, NEED_DATA, ReplyDecoder
from metaq.protocols.text.encode import encode
from metaq.protocols.text.extensions import extensions_of
from metaq.statuses import OK
from metaq_broker.background import begin_work
from metaq_broker.clock import Clock
from metaq_broker.replication.peer import PeerLost, PeerRefused

REPLY_BYTES_MAX: Final = 64 << 20
"""Limit on a reply's bytes."""

IDENTIFIED_S: Final = 60.0
"""Pause in seconds before a server that does not answer as a broker is identified again."""

_READ_BYTES: Final = 1 << 18
_identified: dict[Address, tuple[str | None, float]] = {}
"""What was at an address, and until when that holds."""


class BrokerLink:
    """Open one with ``open``; ``extensions`` has the announcements of the other broker."""

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float
    ) -> None:
        self.address = address
        self.extensions: frozenset[str] = frozenset()
        self._timeout_s = timeout_s
        self._reader, self._writer = reader, writer
        self._decoder = ReplyDecoder(LINE_BYTES_MAX, REPLY_BYTES_MAX)
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._lost: PeerLost | None = None
        self.gone = asyncio.Event()
        """Set when the connection is lost."""
        self._receiving = begin_work(self._receive(), "answers of another broker")

    @classmethod
    async def open(cls, address: Address, timeout_s: float) -> BrokerLink:
        """Connect and ask for the version; ``timeout_s`` limits that and every later request.

        Raises:
            PeerLost: There is no broker, or it does not answer; a server of another kind that ends the connection, or
                answers in its own protocol, is identified.
        """
        reader, writer = await connect(address, timeout_s)
        link = cls(address, reader, writer, timeout_s)
        try:
            link.extensions = extensions_of(await link.text(Version, "version"))
        except BaseException as error:
            is_ended_there = link._receiving.done()
            await link.close()
            if isinstance(error, PeerLost) and is_ended_there:
                await _require_metaq(address)
            raise
        return link

    def send(self, make: Callable[[int], Command]) -> asyncio.Future[Reply]:
        """Send the command that ``make`` returns for an opaque; the future gets its reply.

        Raises:
            PeerLost: The connection is lost.
        """
        self.check()
        self._opaque = self._opaque % INT32_MAX + 1
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[self._opaque] = future
        self._writer.write(encode(make(self._opaque)))
        return future

    async def settle(self, future: asyncio.Future[Reply]) -> Reply:
        """Return the reply of a command that ``send`` sent. Raises ``PeerLost``, also after the timeout."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._writer.drain()
                return await future
        except TimeoutError:
            self._lose(f"no answer within {self._timeout_s:g} s")
            raise self._loss() from None
        except OSError as error:
            self._lose(reason_of(error))
            raise self._loss() from None

    def check(self) -> None:
        """Raise ``PeerLost`` if the connection is lost."""
        if self._lost is not None:
            raise self._loss()

    async def ask(self, make: Callable[[int], Command]) -> Reply:
        return await self.settle(self.send(make))

    async def text(self, make: Callable[[int], Command], request: str) -> str:
        """Return the text of a successful reply; ``request`` names the command in errors.

        Raises:
            PeerLost: The connection is lost.
            RequestRefused: The reply is an error.
        """
        reply = await self.ask(make)
        if not isinstance(reply, Result) or reply.code != OK:
            code, text = (reply.code, reply.text) if isinstance(reply, Result) else (OK, "a value")
            raise PeerRefused(request, code, text)
        return reply.text

    async def stats(self, item: str) -> str:
        """Return the answer to ``stats ITEM``. Raises as ``text``."""
        return await self.text(lambda opaque: Stats(item, opaque), f"stats {item}".strip())

    async def close(self) -> None:
        """Close the connection; requests in flight get ``PeerLost``."""
        self._lose("the connection was closed")
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)

    async def _receive(self) -> None:
        try:
            while chunk := await self._reader.read(_READ_BYTES):
                self._decoder.receive_data(chunk)
                while (reply := self._decoder.next_reply()) is not NEED_DATA:
                    future = self._waiting.pop(reply.opaque, None)
                    if future is not None and not future.done() and not isinstance(reply, Filled):
                        future.set_result(reply)
            self._lose("it closed the connection")
        except OSError as error:
            self._lose(reason_of(error))
        except ProtocolError as error:
            self._lose(f"it sent bytes that are no reply: {error}")

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = PeerLost(self.address, reason)
        self.gone.set()
        with contextlib.suppress(OSError):
            self._writer.transport.abort()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._loss())
                future.exception()  # read it, so that asyncio does not log it if nobody waits

    def _loss(self) -> PeerLost:
        lost = self._lost
        assert lost is not None  # only called when it is
        return PeerLost(lost.address, lost.reason)  # a new exception: each waiter raises it with a traceback of its own


async def _require_metaq(address: Address) -> None:
    """Raise ``PeerLost`` if another kind of server is at ``address``."""
    found, until_s = _identified.get(address, (None, -math.inf))
    if Clock.monotonic() >= until_s:
        found = await asyncio.to_thread(identify, address)
        _identified[address] = found, Clock.monotonic() + IDENTIFIED_S
    if found == TLS:
        raise PeerLost(address, f"it is {TLS}, and brokers connect to each other without; use a tunnel")
    if found not in (None, METAQ):
        raise PeerLost(address, f"it is {found}, not {METAQ}; check the port")


async def connect(address: Address, timeout_s: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection. Raises ``PeerLost``."""
    try:
        async with asyncio.timeout(timeout_s):
            streams = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        raise PeerLost(address, f"no connection within {timeout_s:g} s") from None
    except OSError as error:
        raise PeerLost(address, reason_of(error)) from None
    disable_pacing(streams[1].get_extra_info("socket"))
    return streams


def reason_of(error: OSError) -> str:
    """Return the system's text of an error."""
    # asyncio's text replaces the system's.
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
