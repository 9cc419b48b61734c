"""The master's end of a connection to the other member of a pair, over MetaQ's text protocol.

Messages are ``pair`` commands; the other member's are values. ``version`` is asked now and then: a member that is
silent for too long is lost, whatever the connection says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from metaq.discovery.stats import parse_broker
from metaq.errors import ProtocolError
from metaq.model import INT32_MAX, Address, Buffer
from metaq.protocols.text.commands import Result, Value, Version
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder
from metaq.protocols.text.encode import encode, encode_member_line
from metaq.protocols.text.extensions import EXT_PAIR
from metaq.statuses import OK
from metaq_broker.background import begin_work
from metaq_broker.replication.driver.links import LinkTimes, OnLost, OnMessage
from metaq_broker.replication.peer import PeerLost, PeerRefused
from metaq_broker.text.link import BrokerLink, connect, reason_of

_READ_BYTES: Final = 1 << 18
BUFFERED_BYTES_MAX: Final = 4 << 20
"""Bytes that wait to be sent, before ``drain`` waits."""


JOINED_BYTES_MAX: Final = 1 << 16
"""Parts of a longer message are sent one by one: the memory for a copy costs more than a call of the system."""


class PairLink:
    """Open one with ``open``."""

    def __init__(
        self,
        address: Address,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        times: LinkTimes,
        on_message: OnMessage,
        on_lost: OnLost,
    ) -> None:
        self.address = address
        self._reader, self._writer = streams
        self._writer.transport.set_write_buffer_limits(BUFFERED_BYTES_MAX)
        self._times, self._on_message, self._on_lost = times, on_message, on_lost
        self._decoder = ReplyDecoder()
        self._opaque = 0
        self._is_lost = False
        self._heard_s = asyncio.get_running_loop().time()
        self._tasks = [begin_work(self._receive(), "pair: answers"), begin_work(self._ping(), "pair: pings")]

    @classmethod
    async def open(
        cls, broker_id: int, address: Address, times: LinkTimes, on_message: OnMessage, on_lost: OnLost
    ) -> PairLink:
        """Connect to another member of the pair of this broker id.

        Raises:
            PeerLost: There is no broker, it does not answer, or it has another broker id.
            PeerRefused: It is not a member of a pair.
        """
        link = await BrokerLink.open(address, times.answer_s)
        try:
            if EXT_PAIR not in link.extensions:
                raise PeerRefused("version", OK, f"broker {address} is not a member of a pair ([pair])")
            other_id = parse_broker(await link.stats("")).broker_id
        except ProtocolError as error:
            raise PeerLost(address, f"it sent bytes that are no reply: {error}") from error
        finally:
            await link.close()
        if other_id != broker_id:
            raise PeerLost(address, f"it has brokerId={other_id}, and this member of the pair brokerId={broker_id}")
        return cls(address, await connect(address, times.answer_s), times, on_message, on_lost)

    def write(self, parts: Sequence[Buffer]) -> None:
        """Send a message, which is in parts; it is kept until the connection takes it."""
        if self._is_lost:
            return
        size = sum(map(len, parts))
        line = encode_member_line(size, self._next_opaque())
        if size <= JOINED_BYTES_MAX:
            self._writer.write(b"".join((line, *parts)))
            return
        front, *others = parts
        self._writer.write(line + front)
        for part in others:
            self._writer.write(memoryview(part))  # of which the transport copies only what the socket does not accept

    async def drain(self) -> None:
        """Return when the connection takes more."""
        if not self._is_lost:
            with contextlib.suppress(OSError):
                await self._writer.drain()

    def close(self) -> None:
        """Close the connection; nothing more is reported."""
        self._is_lost = True
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(OSError):
            self._writer.transport.abort()

    def _next_opaque(self) -> int:
        self._opaque = self._opaque % INT32_MAX + 1
        return self._opaque

    async def _receive(self) -> None:
        try:
            while chunk := await self._reader.read(_READ_BYTES):
                self._heard_s = asyncio.get_running_loop().time()
                self._decoder.receive_data(chunk)
                while not self._is_lost and (reply := self._decoder.next_reply()) is not NEED_DATA:
                    if isinstance(reply, Value):
                        self._on_message(reply.data)
                    elif isinstance(reply, Result) and reply.code != OK:
                        self._lose(f"it answers {reply.code}: {reply.text}")
            self._lose("it closed the connection")
        except OSError as error:
            self._lose(reason_of(error))
        except ProtocolError as error:
            self._lose(f"it sent bytes that are no reply: {error}")

    async def _ping(self) -> None:
        loop, times = asyncio.get_running_loop(), self._times
        while True:
            await asyncio.sleep(times.ping_s)
            if loop.time() - self._heard_s > times.answer_s:
                self._lose(f"no answer within {times.answer_s:g} s")
                return
            self._writer.write(encode(Version(self._next_opaque())))

    def _lose(self, reason: str) -> None:
        if not self._is_lost:
            self.close()
            self._on_lost(reason)
