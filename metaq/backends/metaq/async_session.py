"""One connection to one broker for asyncio. Replies are matched to requests by opaque.

Uses the decoder, commands and rules of ``session``: after any error the connection is closed and not used again. All
work runs in the event loop that awaited ``connect``.

Bodies are received into one permanent buffer and copied from there once. Asyncio's streams copy them twice more and
allocate each piece.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from metaq.backends.metaq.polls import PartitionRequest, Polled, read_polled
from metaq.backends.metaq.session import OUTSTANDING_MAX, REPLY_BYTES_MAX, TextReplies, describe
from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError, ProtocolError
from metaq.model import Address
from metaq.net.transport import Timeouts, reason_of
from metaq.protocols.text.commands import NO_OPAQUE, Filled, Get, GetFiltered, Reply, Value, Version
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder
from metaq.protocols.text.encode import encode
from metaq.protocols.text.extensions import extensions_of

if TYPE_CHECKING:
    import ssl

_HEAD_BYTES: Final = 4 << 10
"""Bytes received at a time outside a body: the line in front of one, so that little is copied twice."""
_BODY_BYTES_MAX: Final = 1 << 20
"""Longest body that is received into the buffer; longer ones are joined from pieces."""

Request = Get | GetFiltered | Version
"""The requests that this session sends."""


class AsyncSession(asyncio.BufferedProtocol, TextReplies):
    """A connection to the broker at ``address``; made by ``AsyncSession.connect``."""

    _transport: asyncio.Transport

    def __init__(self, address: Address, timeouts: Timeouts) -> None:
        self.address, self.timeouts = address, timeouts
        self._decoder = ReplyDecoder(body_bytes_max=REPLY_BYTES_MAX, buffers=self._buffer_for)
        self._head, self._body = bytearray(_HEAD_BYTES), bytearray()
        self._fills_body = False
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._failure: MetaqError | None = None
        self._extensions: frozenset[str] | None = None
        self._lost = asyncio.Event()

    @classmethod
    async def connect(cls, address: Address, timeouts: Timeouts, context: ssl.SSLContext | None = None) -> AsyncSession:
        """Open a connection, with TLS if a ``context`` is given.

        Raises:
            ConnectionFailed, DeadlineExceeded: There is no broker, or it does not answer within ``timeouts.connect_s``.
        """
        name = None if context is None else address.host
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeouts.connect_s):
                _, session = await loop.create_connection(
                    lambda: cls(address, timeouts), address.host, address.port, ssl=context, server_hostname=name
                )
        except TimeoutError as error:
            raise DeadlineExceeded(address, "connect", timeouts.connect_s) from error
        except (OSError, UnicodeError) as error:
            raise ConnectionFailed(address, "connect", reason_of(error)) from error
        return session

    @property
    def closed(self) -> bool:
        return self._failure is not None

    async def extensions(self) -> frozenset[str]:
        """Return the broker's extensions to MetaQ 1.4; asked once. Raises as ``call_all``."""
        if self._extensions is None:
            command = Version(0)
            (reply,) = await self.call_all([command])
            self._extensions = extensions_of(self.text_of(reply, command))
        return self._extensions

    async def call_all(self, commands: Sequence[Request]) -> list[Reply]:
        """Send all ``commands`` before waiting for the first reply; return the replies in order.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
            ValueError: A command cannot be encoded, or there are too many. Nothing was sent.
        """
        if self._failure is not None:
            raise self._failure
        if len(self._waiting) + len(commands) > OUTSTANDING_MAX:
            raise ValueError(f"{len(commands)} requests: at most {OUTSTANDING_MAX} can be in flight")
        numbered = [command._replace(opaque=1 + next(self._numbers) % (NO_OPAQUE - 1)) for command in commands]
        written = b"".join(map(encode, numbered))
        loop = asyncio.get_running_loop()
        futures = [self._waiting.setdefault(command.opaque, loop.create_future()) for command in numbered]
        try:
            async with asyncio.timeout(self.timeouts.request_s):
                self._transport.write(written)
                return [await future for future in futures]
        except TimeoutError:
            raise self._fail(DeadlineExceeded(self.address, describe(commands[0]), self.timeouts.request_s)) from None
        except asyncio.CancelledError:
            self._fail(ConnectionFailed(self.address, "call", "it was cancelled"))
            raise

    async def poll_all(self, requests: Sequence[PartitionRequest]) -> list[Polled]:
        """Poll several partitions; see ``polls.poll_all``."""
        extensions = await self.extensions()
        commands = [request.command(extensions) for request in requests]
        replies = await self.call_all(commands)
        return [read_polled(self, command, reply) for command, reply in zip(commands, replies, strict=True)]

    def protocol_error(self, what: str) -> ProtocolError:
        """Close the session because of an invalid answer; return the error to raise."""
        error = ProtocolError(what, address=self.address)
        self._fail(error)
        return error

    async def close(self) -> None:
        self._fail(ConnectionFailed(self.address, "call", "closed by the caller"))
        await self._lost.wait()

    def _fail(self, error: MetaqError) -> MetaqError:
        """Close the connection; all waiting calls raise ``error``."""
        if self._failure is None:
            self._failure = error
            self._transport.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # retrieve the exception: no task may be waiting any more
            self._waiting.clear()
        return error

    # callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        body = self._decoder.buffer
        self._fills_body = body is not None
        return self._head if body is None else body

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._fills_body:
                self._decoder.buffer_filled(nbytes)
            else:
                self._decoder.receive_data(memoryview(self._head)[:nbytes])
            while (reply := self._decoder.next_reply()) is not NEED_DATA:
                self._settle(reply)
        except ProtocolError as error:
            self._fail(ProtocolError(error.what, error.line, self.address))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the broker closed the connection" if exc is None else reason_of(exc)
        self._fail(ConnectionFailed(self.address, "receive", reason))
        self._lost.set()

    def _buffer_for(self, opaque: int, length: int) -> memoryview | None:
        if not 0 < length <= _BODY_BYTES_MAX:
            return None
        if length > len(self._body):
            self._body = bytearray(length)
        return memoryview(self._body)[:length]

    def _settle(self, reply: Reply | Filled) -> None:
        future = self._waiting.pop(reply.opaque, None)
        if future is None:
            raise ProtocolError(f"a reply to request {reply.opaque}, which is not in flight")
        if future.done():
            return
        if isinstance(reply, Filled):
            reply = Value(bytes(memoryview(self._body)[: reply.size]), reply.opaque)
        future.set_result(reply)
