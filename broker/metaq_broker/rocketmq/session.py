"""A client's session of the remoting protocol: decodes frames, dispatches calls, sends responses as they become ready.

The server may send requests, too: ``call`` and ``oneway``, whose responses are matched by number. Requests in flight
are limited, in both directions, for each connection and in total. If all clients together have ``limits.requests_max``
unanswered requests, or more than ``limits.request_bytes_max`` in large ones, further requests are answered with code 2.
Requests beyond the limit of one connection stay in its socket (see ``Connection``). A large request counts as several,
and so does a oneway while it is being executed.

Invalid bytes end the connection without a response, because the start of the next frame is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from metaq.errors import ConnectionFailed, DeadlineExceeded, FieldError, ProtocolError
from metaq.protocols.remoting.channel import Channel, ChannelLimits, InFlight, ReceivedResponse
from metaq.protocols.remoting.codes import ResponseCode, name_of
from metaq.protocols.remoting.command import RESPONSE_FLAG, RemotingCommand
from metaq.protocols.remoting.frames import FRAME_BYTES_MAX, FrameDecoder, encode, encode_start
from metaq_broker.log.partitions.reads import Slice
from metaq_broker.serve.accounts.account_list import Permission
from metaq_broker.serve.foreign import ROCKETMQ
from metaq_broker.serve.replies import FileReply, ReplyQueue
from metaq_broker.serve.session import Client

_LOG: Final = logging.getLogger(__name__)

REPLY_BYTES_AHEAD: Final = 1 << 20
"""Bytes of responses that one connection produces before it checks whether its client reads them."""

LARGE_BYTES: Final = 4096
"""A request counts once more for each multiple of this size that its frame has."""

EXPIRE_S: Final = 1.0
"""Time between two checks for unanswered requests of the server."""


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """``requests_max``: unanswered requests of all clients. ``request_bytes_max``: bytes in their large requests.

    ``own``: unanswered requests of the server to one client. ``own_max``: to all clients.
    """

    frame_bytes_max: int = FRAME_BYTES_MAX
    requests_max: int = 10_000
    own: ChannelLimits = field(default_factory=lambda: ChannelLimits(256, 256))
    own_max: int = 10_000
    request_bytes_max: int = 256 << 20


class Requests(Protocol):
    """Where the requests of clients go: a ``Dispatcher``."""

    def carry_out(self, call: Call) -> None:
        """Execute a request; returns at once."""

    def lost(self, session: RemotingSession) -> None:
        """Remove a session whose connection is lost."""


class RemotingServer:
    """The sessions of one port, and their shared limits. ``session`` is the factory for ``serve.server.Server``.

    Create it in the event loop that serves them.
    """

    def __init__(self, dispatcher: Requests, limits: RemotingLimits | None = None) -> None:
        self.dispatcher = dispatcher
        self.limits = RemotingLimits() if limits is None else limits
        self.loop = asyncio.get_running_loop()
        self.requests = 0
        """Unanswered requests of all clients."""
        self.own_requests = InFlight("request", self.limits.own_max)
        self.sessions: set[RemotingSession] = set()
        self.request_bytes = 0
        """Bytes in large requests that are being carried out."""
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    def session(self, replies: ReplyQueue, client: Client) -> RemotingSession:
        """Return the session of a new connection."""
        made = RemotingSession(self, replies, client)
        self.sessions.add(made)
        return made

    def expects_response(self) -> None:
        """End requests of the server that are not answered in time, or at once when it stops."""
        if self._timer is None:
            self._timer = self.loop.call_later(0 if self._stopped else EXPIRE_S, self._expire)

    def stop(self) -> None:
        """End the requests of the server: connections that end read no more responses. Call it before they do."""
        self._stopped = True
        for session in list(self.sessions):
            session.expire(math.inf)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        for session in list(self.sessions):
            session.expire(math.inf if self._stopped else self.loop.time())
        if self.own_requests.count:
            self.expects_response()


class RemotingSession:
    """The session of one connection. ``client`` is the peer."""

    __slots__ = ("_channel", "_lost", "_replies", "_server", "_unanswered", "account", "client", "decoder", "finished")

    protocol = ROCKETMQ
    expects_block = False

    def __init__(self, server: RemotingServer, replies: ReplyQueue, client: Client) -> None:
        self.client = client
        self.account: str | None = None
        """The access key of the heartbeats, if accounts are required."""
        self.finished = False
        self._server, self._replies = server, replies
        self.decoder = FrameDecoder(server.limits.frame_bytes_max)
        self._channel: Channel[asyncio.Future[RemotingCommand]] | None = None  # few clients get requests
        self._unanswered = 0
        self._lost = False

    # ---- called by the connection

    def handle(self, requests_max: int, quantum_over: Callable[[], bool]) -> bool:
        """Carry out up to ``requests_max`` requests, until ``quantum_over``; return whether there may be more."""
        decoder, replies = self.decoder, self._replies
        while True:
            try:
                command = decoder.take()
            except ProtocolError as error:
                _LOG.info("connection ended", extra={"fields": {"peer": self.client.peer, "reason": error}})
                self._end()
                return False
            if command is None:
                return False
            requests_max -= 1 + decoder.taken_bytes // LARGE_BYTES
            if command.flag & RESPONSE_FLAG:
                self._answered(command)
            else:
                self._requested(command, decoder.taken_bytes)
            is_pending = decoder.pending_bytes > 0
            is_over = requests_max <= 0 or replies.full or replies.ready_bytes > REPLY_BYTES_AHEAD
            if not is_pending or is_over or quantum_over():
                return is_pending

    def connection_lost(self) -> None:
        """End the session; pending requests to the client fail."""
        self._lost = self.finished = True
        self._server.sessions.discard(self)
        self._server.requests -= self._unanswered
        self._unanswered = 0
        for pending in [] if self._channel is None else self._channel.close():
            error = ConnectionFailed(self.client.peer, name_of(pending.request.code), "the client is gone")
            _fail(pending.owner, error)
        self._server.dispatcher.lost(self)

    # ---- called by handlers

    def call(self, command: RemotingCommand, timeout_s: float) -> asyncio.Future[RemotingCommand]:
        """Send a request to the client; the future fails after ``timeout_s`` (within a second) or with the connection.

        Raises:
            TooManyInFlight: The limit of the server's pending requests is reached, for this client or in total.
            ConnectionFailed: The connection is lost.
        """
        self._check_connected(command)
        future: asyncio.Future[RemotingCommand] = self._server.loop.create_future()
        request = self._own_channel().start(command, self._server.loop.time() + timeout_s, future)
        self._server.expects_response()
        self._replies.push(encode(request))
        return future

    def oneway(self, command: RemotingCommand) -> None:
        """Send a oneway to the client. Raises as ``call``.

        A oneway is in flight while more than ``REPLY_BYTES_AHEAD`` of responses wait for this client.
        """
        self._check_connected(command)
        channel = self._own_channel()
        request = channel.start_oneway(command)
        if self._replies.ready_bytes <= REPLY_BYTES_AHEAD:
            while channel.oneways_in_flight:
                channel.oneway_sent()
        self._replies.push(encode(request))

    def disconnect(self) -> None:
        """Close the connection after the responses that are ready."""
        if not self._lost:
            self._end()
            self._replies.push(b"")  # wakes the connection

    def send_response(self, response: RemotingCommand | bytes | None) -> None:
        """Send the response, or its frame, to a counted request; ``None``: no response. See ``Call``."""
        if self._lost:
            return
        self._unanswered -= 1
        self._server.requests -= 1
        self._replies.push(_frame(response) if isinstance(response, RemotingCommand) else response or b"", 1)

    def send_file(self, response: RemotingCommand, file: Slice) -> None:
        """Send a response whose body is in a file."""
        if self._lost:
            return
        self._unanswered -= 1
        self._server.requests -= 1
        reply = FileReply(encode_start(response, file.length), file)
        self._replies.ask(lambda: reply)
        self._replies.push(b"", 1)  # otherwise it would count twice

    def release(self, counted_bytes: int, *, is_oneway: bool) -> None:
        """Stop counting the bytes of a request, also when the client is disconnected."""
        self._server.request_bytes -= counted_bytes
        self._replies.unanswered -= counted_bytes // LARGE_BYTES + is_oneway
        if is_oneway:  # no response follows that would wake the connection
            self._replies.wake()

    def expire(self, now: float) -> None:
        """Fail the futures of requests that the client did not answer by ``now``."""
        for expired in [] if self._channel is None else self._channel.expire(now):
            name = name_of(expired.request.code)
            _fail(expired.owner, DeadlineExceeded(self.client.peer, name, EXPIRE_S))

    # ---- the work

    def _requested(self, command: RemotingCommand, frame_bytes: int) -> None:
        """Count a request and execute it; one too many is refused."""
        server, limits, is_oneway = self._server, self._server.limits, command.is_oneway
        if server.requests >= limits.requests_max or server.request_bytes > limits.request_bytes_max:
            self._refuse(command, is_oneway=is_oneway)
            return
        if not is_oneway:
            server.requests += 1
            self._unanswered += 1
        counted_bytes = frame_bytes if is_oneway or frame_bytes >= LARGE_BYTES else 0
        server.request_bytes += counted_bytes
        self._replies.unanswered += 1 + counted_bytes // LARGE_BYTES
        server.dispatcher.carry_out(Call(command, self, counted_bytes))

    def _refuse(self, command: RemotingCommand, *, is_oneway: bool) -> None:
        if is_oneway:
            fields = {"peer": self.client.peer, "request": name_of(command.code)}
            _LOG.warning("oneway request dropped, too many are being carried out", extra={"fields": fields})
            return
        busy = command.reply(ResponseCode.SYSTEM_BUSY, remark="[OVERLOAD]too many requests are being carried out")
        self._replies.push(_frame(busy))

    def _answered(self, command: RemotingCommand) -> None:
        """Pass a response of the client to who waits for it."""
        event = None if self._channel is None else self._channel.received(command)
        if isinstance(event, ReceivedResponse) and not event.owner.done():
            event.owner.set_result(command)

    def _own_channel(self) -> Channel[asyncio.Future[RemotingCommand]]:
        if self._channel is None:
            server = self._server
            self._channel = Channel(self.client.peer, server.limits.own, total_requests=server.own_requests)
        return self._channel

    def _check_connected(self, command: RemotingCommand) -> None:
        if self._lost or self.finished:
            raise ConnectionFailed(self.client.peer, name_of(command.code), "the client is gone")

    def _end(self) -> None:
        self.finished = True
        self._replies.end()


def _frame(response: RemotingCommand) -> bytes:
    try:
        return encode(response)
    except FieldError as error:  # such as a code that does not fit the binary header
        return encode(
            RemotingCommand(
                ResponseCode.SYSTEM_ERROR,
                opaque=response.opaque,
                flag=response.flag,
                remark=str(error),
                codec=response.codec,
            )
        )


def _fail(future: asyncio.Future[RemotingCommand], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class Call:
    """A request, and the path of its response to ``session``.

    The session counts ``counted_bytes`` for the request until it is finished (``RemotingSession.release``).
    """

    __slots__ = ("_counted_bytes", "_open", "access", "request", "session")

    def __init__(self, request: RemotingCommand, session: RemotingSession, counted_bytes: int = 0) -> None:
        self.request, self.session, self._counted_bytes = request, session, counted_bytes
        self.access: RequestAccess | None = None
        self._open = not request.is_oneway

    def answer(self, response: RemotingCommand | bytes) -> None:
        """Send the response, or its frame. Has no effect after the first call, for a oneway, or if the connection is
        lost.
        """
        if self._close():
            self.session.send_response(response)

    def answer_file(self, response: RemotingCommand, body: Slice) -> None:
        """Send a response whose body is sent directly from a file."""
        if self._close():
            self.session.send_file(response, body)

    def refusal_for(self, topic: str, needed: Permission) -> RemotingCommand | None:
        """Return the refusal of a request that has found a message of ``topic``; ``None`` without one."""
        return None if self.access is None else self.access.refusal_for(self, topic, needed)

    @property
    def depends_on_topic(self) -> bool:
        """Whether the topic of a message that the request names decides on whether it is allowed."""
        return self.access is not None and self.access.depends_on_topics

    def leave_unanswered(self) -> None:
        """Send no response, also later."""
        if self._close():
            self.session.send_response(None)

    def _close(self) -> bool:
        """End the request; return whether to send a response."""
        if self._counted_bytes:
            self.session.release(self._counted_bytes, is_oneway=self.request.is_oneway)
            self._counted_bytes = 0
        was_open, self._open = self._open, False
        return was_open


class RequestAccess(Protocol):
    """Access control. ``check`` and ``refusal_for`` return the refusal of a request, ``None`` if it is allowed."""

    @property
    def depends_on_topics(self) -> bool:
        """Whether some topics are not for everybody."""

    def check(self, call: Call) -> RemotingCommand | None:
        """Check a request before it is executed."""

    def refusal_for(self, call: Call, topic: str, needed: Permission) -> RemotingCommand | None:
        """Check a request that has found a message of ``topic``, on which it needs one of ``needed``."""
