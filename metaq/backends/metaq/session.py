"""One connection to one broker. Replies are matched to requests by opaque.

A broker may answer in any order (a Java broker does, from its thread pools), so only the opaque identifies the request.
After an error in the middle of an exchange it is unknown which reply is next; the session is then closed and stays
closed until ``reopen``. A refusal (code other than 200) is an ordinary reply and closes nothing. There is one
exception: a member of a pair refuses everything while it is not the master, so the next session is opened with the
master.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from metaq.backends.metaq.pair_members import PairMembers, parse_pair
from metaq.errors import BrokerError, NotPairMaster
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.identification import METAQ
from metaq.net.session import RequestSession
from metaq.net.transport import DEFAULT_TIMEOUTS, TCP, Timeouts, Transport
from metaq.protocols.text.commands import (
    NO_OPAQUE,
    Command,
    Copy,
    Decide,
    Fetch,
    Filled,
    Get,
    GetFiltered,
    GetOffset,
    GroupRequest,
    MemberMessage,
    Put,
    PutBatch,
    Quit,
    Reply,
    ReportTypes,
    Result,
    Stats,
    Sync,
    TransactionCommand,
    Value,
    Version,
)
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder
from metaq.protocols.text.encode import encode, encode_put_batch_line
from metaq.protocols.text.extensions import extensions_of
from metaq.protocols.text.pair import pair_of
from metaq.statuses import FORBIDDEN, NOT_MASTER, OK

OUTSTANDING_MAX: Final = 256
"""Limit on requests of one session that were posted and not yet waited for."""

TOGETHER: Final = OUTSTANDING_MAX // 4
"""Requests that are written at once; up to twice as many are in flight."""

REPLY_BYTES_MAX: Final = 64 << 20
"""Longest reply body that is accepted; far above any reasonable fetch size."""

_RECEIVE_BYTES: Final = 64 << 10
"""Bytes received at a time if the size is unknown. The system allocates a larger buffer anew each time, which costs ten
times as much as a short reply.
"""
_BODY_BYTES_MAX: Final = 1 << 20
"""Limit on bytes of a body received at a time. Each receive may wait for the interpreter's lock."""
_OWN_BODY_BYTES_MIN: Final = 128 << 10
"""Shortest body that is received into the session's own buffer: one copy when it is complete, and no allocation for
each piece.
"""
_HEAD_BYTES: Final = 4 << 10
"""Bytes received at a time while buffers wait for bodies: the line in front of one, so that little is copied twice."""


class Session(RequestSession[Command, Reply | Filled]):
    """A connection to the broker at ``address``. For one thread at a time; made by ``Session.connect``."""

    protocol, server, response, kind = "MetaQ's protocol", "broker", "reply", METAQ
    _decoder: ReplyDecoder

    def __init__(
        self,
        address: Address,
        timeouts: Timeouts,
        transport: Transport,
        clock: Clock,
        members: PairMembers | None = None,
    ) -> None:
        super().__init__(address, timeouts, clock)
        self._transport, self._members = transport, members
        self.locate: Callable[[Address], Address] | None = None
        """Returns the broker's current address for a failed one; ``None``: unchanged. Set by the lessee."""
        self._sent = itertools.count()
        self._buffers: dict[int, memoryview] = {}
        self._own_body = memoryview(b"")
        self._open()

    @classmethod
    def connect(
        cls,
        address: Address,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        transport: Transport = TCP,
        clock: Clock = SYSTEM_CLOCK,
        members: PairMembers | None = None,
    ) -> Session:
        """Open a connection. ``members``: what is known about pairs, shared by all sessions of a pool.

        Raises:
            ConnectionFailed, DeadlineExceeded: There is no broker, or it does not answer within ``timeouts.connect_s``.
        """
        return cls(address, timeouts, transport, clock, members)

    def text_of(self, reply: Reply, command: Command) -> str:
        """Return the text of a reply to ``command`` with code 200.

        Raises:
            BrokerError: Any other code.
            ProtocolError: The reply is not a result; the session is closed.
        """
        if not isinstance(reply, Result):
            raise self.protocol_error(f"message bytes were received as the reply to {describe(command)}")
        if reply.code != OK:
            raise BrokerError(self.address, describe(command), reply.code, reply.text)
        return reply.text

    def _open(self) -> None:
        self._stream = self._transport.connect_tcp(self.address, self.timeouts.connect_s)
        self._decoder = ReplyDecoder(body_bytes_max=REPLY_BYTES_MAX, buffers=self._buffer_for)
        self._closed_because = None
        self._identified = False
        self._version: str | None = None
        self._extensions: frozenset[str] | None = None
        self.notes: dict[str, str] = {}
        """Facts about the broker that users of the session cache while the connection lasts."""

    def reopen(self) -> None:
        """Close the connection and open a new one, to the address that ``locate`` returns, or to the master of the
        broker's pair; requests in flight are dropped.

        Raises:
            ConnectionFailed, DeadlineExceeded: As ``connect``; the session is then still closed.
            MetaqError: As ``locate``.
        """
        self.close("reopened")
        if self.locate is not None:
            self.address = self.locate(self.address)
        elif self._members is not None:
            self.address = self._members.look(self.address)
        self._open()

    @property
    def version(self) -> str:
        """Return the text of the broker's version; asked once per connection."""
        if self._version is None:
            self._version = self.ask(Version(0))
            other = pair_of(self._version)
            if self._members is not None:
                if other is not None:
                    self._members.note(self.address, other)
                else:
                    self._members.note_alone(self.address)
        return self._version

    @property
    def extensions(self) -> frozenset[str]:
        """Return the broker's extensions to MetaQ 1.4, by its version. Empty for a Java broker."""
        if self._extensions is None:
            self._extensions = extensions_of(self.version)
        return self._extensions

    def call(self, command: Command, timeout_s: float | None = None) -> Reply:
        """Send ``command`` under a new opaque and wait for its reply; other replies are kept for their callers.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
            ValueError: The command cannot be encoded, or has no reply. Nothing was sent.
        """
        timeout_s = self.timeouts.request_s if timeout_s is None else timeout_s
        deadline = self.clock.monotonic() + timeout_s
        reply = self.collect(self.post(command, timeout_s), timeout_s, deadline)
        assert not isinstance(reply, Filled), "a request with a buffer is collected with collect"
        return reply

    def ask(self, command: Command, timeout_s: float | None = None) -> str:
        """Send a command with a text answer; return the text of a 200.

        Raises:
            BrokerError: Any other code. The session stays usable.
        """
        return self.text_of(self.call(command, timeout_s), command)

    def stats(self, items: Sequence[str]) -> dict[str, str]:
        """Return the answers to ``stats ITEM`` for each item; the requests are pipelined. Raises as ``ask``."""
        commands = {item: Stats(item, 0) for item in items}
        opaques = {item: self.post(command) for item, command in commands.items()}
        texts = {item: self.text_of(self.wait(opaques[item]), command) for item, command in commands.items()}
        if "" in texts and self._members is not None:
            if (facts := parse_pair(texts[""])) is not None:
                self._members.note_facts(self.address, facts)
            else:
                self._members.note_alone(self.address)
        return texts

    def post(self, command: Command, timeout_s: float | None = None, buffer: memoryview | None = None) -> int:
        """Send ``command`` under a new opaque and return the opaque; collect the reply with ``wait``.

        With a ``buffer`` (writable), collect the reply with ``collect``: the body of a value is received into the
        buffer if it fits. The buffer belongs to this session until then, even if the request is abandoned.

        Raises:
            RuntimeError: ``OUTSTANDING_MAX`` requests are in flight already.
            ConnectionFailed, DeadlineExceeded: The session is closed.
            ValueError: The command cannot be encoded, or has no reply. Nothing was sent.
        """
        opaque, command = self._numbered(command)
        self.send(command, timeout_s)
        self._waiting[opaque] = command
        if buffer is not None:
            self._buffers[opaque] = buffer
        return opaque

    def post_all(self, commands: Sequence[Command], timeout_s: float | None = None) -> list[int]:
        """Post each of ``commands``, all in one write; return the opaques.

        Raises:
            RuntimeError: More than ``OUTSTANDING_MAX`` requests would be in flight. Nothing was sent.
            ConnectionFailed, DeadlineExceeded: The session is closed.
            ValueError: A command cannot be encoded, or has no reply. Nothing was sent.
        """
        if not commands:
            return []
        numbered = dict(self._numbered(command, len(commands)) for command in commands)
        written = b"".join(map(encode, numbered.values()))
        timeout_s = self.timeouts.request_s if timeout_s is None else timeout_s
        with self._conversation(commands[0], timeout_s):
            self._stream.send(written, timeout_s)
        self._waiting |= numbered
        return list(numbered)

    def _numbered(self, command: Command, count: int = 1) -> tuple[int, Command]:
        """Return a new opaque and ``command`` with it, after checking that ``count`` more requests may be sent."""
        if isinstance(command, Quit) or (isinstance(command, TransactionCommand) and command.type == "END"):
            raise ValueError(f"{describe(command)} has no reply; use send")
        if len(self._waiting) + len(self._answered) + count > OUTSTANDING_MAX:
            raise RuntimeError(f"{self!r}: {OUTSTANDING_MAX} requests are in flight; wait for one first")
        opaque = 1 + next(self._sent) % (NO_OPAQUE - 1)
        return opaque, command._replace(opaque=opaque)

    def send(self, command: Command, timeout_s: float | None = None) -> None:
        """Send a command that has no reply: the end of a transaction, or quit."""
        written = encode_put_batch_line(command) if isinstance(command, PutBatch) else encode(command)
        timeout_s = self.timeouts.request_s if timeout_s is None else timeout_s
        with self._conversation(command, timeout_s):
            self._stream.send(written, timeout_s, more=isinstance(command, PutBatch))
            if isinstance(command, PutBatch):
                self._stream.send(command.block, timeout_s)  # not joined with its line: a block is large

    def wait(self, opaque: int, timeout_s: float | None = None) -> Reply:
        """Return the reply to the request that ``post`` gave ``opaque``; each can be collected once.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
            KeyError: No such request on this connection.
        """
        reply = self.collect(opaque, timeout_s)
        assert not isinstance(reply, Filled), "a request with a buffer is collected with collect"
        return reply

    def collect(self, opaque: int, timeout_s: float | None = None, deadline: float | None = None) -> Reply | Filled:
        """Return the reply to a request posted with a buffer: ``Filled`` has the number of bytes that were received
        into it. Raises as ``wait``.

        ``deadline``: on the clock, if part of ``timeout_s`` has passed.
        """
        if self._closed_because is not None:
            raise self._given_up(f"waiting for reply {opaque}")
        if opaque in self._answered:
            return self._answered.pop(opaque)
        timeout_s = self.timeouts.request_s if timeout_s is None else timeout_s
        deadline = self.clock.monotonic() + timeout_s if deadline is None else deadline
        with self._conversation(self._waiting[opaque], timeout_s):
            while opaque not in self._answered:
                self._take_reply(deadline)
        return self._answered.pop(opaque)

    def close(self, reason: str = "closed by the caller") -> None:
        """Close the session; the callers' buffers are released."""
        super().close(reason)
        self._buffers.clear()

    def _buffer_for(self, opaque: int, length: int) -> memoryview | None:
        buffer = self._buffers.get(opaque)
        if buffer is not None:
            return buffer[:length] if 0 < length <= len(buffer) else None
        if not _OWN_BODY_BYTES_MIN <= length <= _BODY_BYTES_MAX:
            return None
        if length > len(self._own_body):
            self._own_body = memoryview(bytearray(length))
        return self._own_body[:length]

    def _take_reply(self, deadline: float) -> None:
        reply = self._decoder.next_reply()
        while reply is NEED_DATA:
            self._receive(deadline)
            reply = self._decoder.next_reply()
        assert isinstance(reply, Result | Value | Filled)
        if isinstance(reply, Result) and reply.code == FORBIDDEN and NOT_MASTER in reply.text:
            self._identified = True
            if self._members is not None:
                self._members.refused(self.address)
            raise NotPairMaster(self.address, "receive", reply.text)
        buffer = self._buffers.pop(reply.opaque, None)
        if buffer is None and isinstance(reply, Filled):
            reply = Value(bytes(self._own_body[: reply.size]), reply.opaque)
        self._take(reply.opaque, reply)

    @property
    def _may_have_moved(self) -> bool:
        return self._members is not None and self._members.may_have_moved(self.address)

    def _require_current(self) -> None:
        if self._members is not None and (moved := self._members.look(self.address)) != self.address:
            raise self._replaced(f"{moved} is its pair's master by now")

    def _next_look_s(self, silence_s: float) -> float:
        is_member = self._members is not None and self._members.is_member(self.address)
        return super()._next_look_s(silence_s) if is_member else 2 * silence_s

    def _receive_within(self, timeout_s: float) -> None:
        buffer = self._decoder.buffer
        if buffer is not None:
            count = self._stream.recv_into(buffer, timeout_s)
            self._decoder.buffer_filled(count)
        else:
            wanted = max(_RECEIVE_BYTES, min(self._decoder.missing_bytes, _BODY_BYTES_MAX))
            chunk = self._stream.recv(_HEAD_BYTES if self._buffers else wanted, timeout_s)
            count = len(chunk)
            self._decoder.receive_data(chunk)
        if not count:
            raise self._end_of_stream()

    def _action(self, request: Command) -> str:
        return describe(request)


def describe(command: Command) -> str:
    """Return a description of a command for errors: ``get of orders partition 3 at offset 120``."""
    match command:
        case Put() | PutBatch():
            return f"put to {command.topic} partition {command.partition}"
        case Get():
            return f"get of {command.topic} partition {command.partition} at offset {command.offset}"
        case GetFiltered():
            return f"get of types in {command.topic} partition {command.partition} at offset {command.offset}"
        case Fetch():
            return f"fetch of {command.topic} partition {command.partition} at offset {command.offset}"
        case ReportTypes():
            return f"report of the message types of group {command.group} in {command.topic}"
        case GetOffset(mode="timestamp"):
            return f"lookup of time {command.offset} in {command.topic} partition {command.partition}"
        case GetOffset(mode="message"):
            return f"lookup of message {command.offset} in {command.topic} partition {command.partition}"
        case GetOffset(mode="file"):
            return f"lookup of the file of {command.topic} partition {command.partition} at offset {command.offset}"
        case GetOffset(mode="incarnation"):
            return f"lookup of the incarnation of {command.topic} partition {command.partition}"
        case GetOffset():
            return f"lookup of offset {command.offset} in {command.topic} partition {command.partition}"
        case TransactionCommand():
            return f"transaction {command.type}" + (f" of {command.key}" if command.key else "")
        case GroupRequest():
            return f"{command.action} of group {command.group}"
        case Decide():
            return f"decision on batch {command.batch_id} of query {command.query_id}"
        case Copy():
            return f"copy of {command.topic} partition {command.partition}"
        case Sync():
            return f"sync of {command.topic} partition {command.partition}"
        case MemberMessage():
            return "message to the other member of the pair"
        case Stats():
            return f"stats {command.item}".rstrip()
        case Version():
            return "version"
        case Quit():
            return "quit"


def call_all(session: Session, commands: Sequence[Command]) -> list[Reply]:
    """Return the replies to ``commands``, in order; the next requests are sent while earlier ones are answered.

    ``session`` must have at least half of its ``OUTSTANDING_MAX`` requests free.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
        ValueError: A command cannot be encoded, or has no reply.
    """
    opaques: list[int] = []
    replies: list[Reply] = []
    for start in range(0, len(commands), TOGETHER):
        waited_for = len(opaques)
        opaques += session.post_all(commands[start : start + TOGETHER])
        replies += map(session.wait, opaques[len(replies) : waited_for])
    return replies + [session.wait(opaque) for opaque in opaques[len(replies) :]]
