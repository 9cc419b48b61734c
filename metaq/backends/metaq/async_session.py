"""One connection to one broker for asyncio: requests out, replies in, matched by opaque.

The same decoder, commands and rules as ``session``: after any error the connection is closed and not used again. One
task receives; everything runs in the loop that ``connect`` was awaited in.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from metaq.backends.metaq.polls import PartitionRequest, Polled, read_polled
from metaq.backends.metaq.session import OUTSTANDING_MAX, REPLY_BYTES_MAX, describe
from metaq.errors import BrokerError, ConnectionFailed, DeadlineExceeded, MetaqError, ProtocolError
from metaq.model import Address
from metaq.net.transport import Timeouts, reason_of
from metaq.protocols.text.commands import NO_OPAQUE, Command, Filled, Get, GetFiltered, Reply, Result, Version
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder
from metaq.protocols.text.encode import encode
from metaq.protocols.text.extensions import extensions_of

if TYPE_CHECKING:
    import ssl

_RECEIVE_BYTES: Final = 256 << 10

Request = Get | GetFiltered | Version
"""What this session sends."""


class AsyncSession:
    """A connection to the broker at ``address``; made by ``AsyncSession.connect``."""

    def __init__(
        self, address: Address, timeouts: Timeouts, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address, self.timeouts = address, timeouts
        self._reader, self._writer = reader, writer
        self._decoder = ReplyDecoder(body_bytes_max=REPLY_BYTES_MAX)
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._failure: MetaqError | None = None
        self._extensions: frozenset[str] | None = None
        self._receiving = asyncio.create_task(self._receive(), name=f"metaq-receive-{address}")

    @classmethod
    async def connect(cls, address: Address, timeouts: Timeouts, context: ssl.SSLContext | None = None) -> AsyncSession:
        """Open a connection, with TLS if a ``context`` is given.

        Raises:
            ConnectionFailed, DeadlineExceeded: There is no broker, or it does not answer in ``timeouts.connect_s``.
        """
        name = None if context is None else address.host
        try:
            async with asyncio.timeout(timeouts.connect_s):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=context, server_hostname=name
                )
        except TimeoutError as error:
            raise DeadlineExceeded(address, "connect", timeouts.connect_s) from error
        except (OSError, UnicodeError) as error:
            raise ConnectionFailed(address, "connect", reason_of(error)) from error
        return cls(address, timeouts, reader, writer)

    @property
    def closed(self) -> bool:
        """Whether this session can no longer be used."""
        return self._failure is not None

    async def extensions(self) -> frozenset[str]:
        """Return what the broker offers beyond MetaQ 1.4; asked once. Raises as ``call_all``."""
        if self._extensions is None:
            command = Version(0)
            (reply,) = await self.call_all([command])
            self._extensions = extensions_of(self.text_of(reply, command))
        return self._extensions

    async def call_all(self, commands: Sequence[Request]) -> list[Reply]:
        """Send ``commands``, all before the first reply is waited for, and return the replies in their order.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
            ValueError: A command cannot be written, or there are too many. Nothing was sent.
        """
        if self._failure is not None:
            raise self._failure
        if len(self._waiting) + len(commands) > OUTSTANDING_MAX:
            raise ValueError(f"{len(commands)} requests: at most {OUTSTANDING_MAX} can be under way")
        numbered = [command._replace(opaque=1 + next(self._numbers) % (NO_OPAQUE - 1)) for command in commands]
        written = b"".join(map(encode, numbered))
        loop = asyncio.get_running_loop()
        futures = [self._waiting.setdefault(command.opaque, loop.create_future()) for command in numbered]
        try:
            async with asyncio.timeout(self.timeouts.request_s):
                self._writer.write(written)
                await self._writer.drain()
                return [await future for future in futures]
        except TimeoutError:
            raise self._fail(DeadlineExceeded(self.address, describe(commands[0]), self.timeouts.request_s)) from None
        except OSError as error:
            raise self._fail(ConnectionFailed(self.address, "send", reason_of(error))) from error
        except asyncio.CancelledError:
            self._fail(ConnectionFailed(self.address, "call", "it was cancelled"))
            raise

    async def poll_all(self, requests: Sequence[PartitionRequest]) -> list[Polled]:
        """As ``polls.poll_all``."""
        extensions = await self.extensions()
        commands = [request.command(extensions) for request in requests]
        replies = await self.call_all(commands)
        return [read_polled(self, command, reply) for command, reply in zip(commands, replies, strict=True)]

    def text_of(self, reply: Reply, command: Command) -> str:
        """Return the text of a reply to ``command`` with code 200.

        Raises:
            BrokerError: Any other code.
            ProtocolError: The reply is not a result at all; the session is closed.
        """
        if not isinstance(reply, Result):
            raise self.protocol_error(f"message bytes came as the reply to {describe(command)}")
        if reply.code != 200:
            raise BrokerError(self.address, describe(command), reply.code, reply.text)
        return reply.text

    def protocol_error(self, what: str) -> ProtocolError:
        """Close the session because of an answer that no broker gives; the error to raise."""
        error = ProtocolError(what, address=self.address)
        self._fail(error)
        return error

    async def close(self) -> None:
        """Drop the connection."""
        self._fail(ConnectionFailed(self.address, "call", "closed by the caller"))
        self._receiving.cancel()
        with suppress(asyncio.CancelledError):
            await self._receiving
        with suppress(OSError):
            await self._writer.wait_closed()

    def _fail(self, error: MetaqError) -> MetaqError:
        """Close the connection; everybody who waits gets ``error``."""
        if self._failure is None:
            self._failure = error
            self._writer.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # looked at: nobody may wait for it any more
            self._waiting.clear()
        return error

    async def _receive(self) -> None:
        try:
            while data := await self._reader.read(_RECEIVE_BYTES):
                self._decoder.receive_data(data)
                while (reply := self._decoder.next_reply()) is not NEED_DATA:
                    self._settle(reply)
            self._fail(ConnectionFailed(self.address, "receive", "the broker closed the connection"))
        except OSError as error:
            self._fail(ConnectionFailed(self.address, "receive", reason_of(error)))
        except ProtocolError as error:
            self._fail(ProtocolError(error.what, error.line, self.address))

    def _settle(self, reply: object) -> None:
        assert not isinstance(reply, Filled), "no request has a buffer"
        opaque = getattr(reply, "opaque", None)
        future = self._waiting.pop(opaque, None) if isinstance(opaque, int) else None
        if future is None:
            raise ProtocolError(f"a reply to request {opaque}, which is not under way")
        if not future.done():
            future.set_result(reply)  # type: ignore[arg-type]
