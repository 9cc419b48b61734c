"""One remoting connection: a stream, its frames and its channel. Has no thread.

Any thread may send; one thread calls ``receive``. A task that reads from one broker does both in one thread: it sends
many requests ahead and receives the responses without switching threads. In ``RemotingClient`` a separate thread
receives.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError, ProtocolError
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.duplex import DuplexStream
from metaq.protocols.remoting.channel import (
    DEFAULT_LIMITS,
    Channel,
    ChannelLimits,
    Expired,
    Pending,
    ReceivedRequest,
    ReceivedResponse,
)
from metaq.protocols.remoting.codes import ResponseCode, name_of
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FRAME_BYTES_MAX, FrameDecoder, encode

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")

RECEIVE_BYTES: Final = 1 << 18
"""Limit on bytes received at once."""

Event = ReceivedResponse[T] | ReceivedRequest | Expired[T]


class CallHook(Protocol):
    """Called for every call of a client, in the thread that sends or receives."""

    def before(self, address: Address, command: RemotingCommand) -> RemotingCommand:
        """Return ``command`` in the form to send, for example signed."""

    def after(self, address: Address, command: RemotingCommand, response: RemotingCommand) -> None: ...


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings shared by all connections of a client. ``frame_bytes_max`` limits frames of servers."""

    limits: ChannelLimits = DEFAULT_LIMITS
    hooks: Sequence[CallHook] = ()
    frame_bytes_max: int = FRAME_BYTES_MAX
    clock: Clock = SYSTEM_CLOCK


class RemotingConnection(Generic[T]):
    """A connection. ``T`` is the context that the caller attaches to its requests.

    ``refuse_requests``: answer requests of the server with 3 (not supported) instead of returning them.
    """

    def __init__(
        self,
        stream: DuplexStream,
        address: Address,
        settings: ConnectionSettings | None = None,
        *,
        refuse_requests: bool = False,
    ) -> None:
        settings = ConnectionSettings() if settings is None else settings
        self.address = address
        self._stream, self._hooks, self._clock = stream, settings.hooks, settings.clock
        self._refuse_requests = refuse_requests
        self._lock = threading.Lock()  # held during each call of the channel
        self._channel: Channel[T] = Channel(address, settings.limits)
        self._decoder = FrameDecoder(settings.frame_bytes_max)
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._last_activity = self._clock.monotonic()
        self.going_away = False
        """Whether the server has announced that it closes this connection (1500)."""

    def __enter__(self) -> RemotingConnection[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether this side has closed the connection, also because it broke."""
        return self._stream.closed

    @property
    def secured(self) -> bool:
        """Whether it uses TLS."""
        return self._stream.secured

    @property
    def in_flight(self) -> int:
        """Requests that wait for a response."""
        return self._channel.in_flight

    @property
    def late_responses(self) -> int:
        """Responses after their deadline, and unexpected responses."""
        return self._channel.late_responses

    @property
    def next_deadline(self) -> float | None:
        """When the first request expires, on the clock of the settings."""
        with self._lock:
            return self._channel.next_deadline

    def idle_s(self, now: float) -> float:
        """Return seconds since the last send or receive; 0 while a response is pending."""
        return 0.0 if self._channel.in_flight else now - self._last_activity

    def request(self, command: RemotingCommand, timeout_s: float, owner: T) -> int:
        """Send a request; return its number. ``receive`` returns its response, or its end, with ``owner``.

        Raises:
            TooManyInFlight: The limit of pending requests is reached.
            DeadlineExceeded: It could not be sent within ``timeout_s``.
            ConnectionFailed: The connection is lost.
            FieldError: The command does not fit into a frame.
        """
        for hook in self._hooks:
            command = hook.before(self.address, command)
        with self._lock:
            started = self._channel.start(command, self._clock.monotonic() + timeout_s, owner)
        try:
            self._send(started, timeout_s)
        except BaseException:
            self.forget(started.opaque)
            raise
        return started.opaque

    def oneway(self, command: RemotingCommand, timeout_s: float) -> None:
        """Send a request without a response; returns when it is passed to the network. Raises as ``request``."""
        for hook in self._hooks:
            command = hook.before(self.address, command)
        with self._lock:
            started = self._channel.start_oneway(command)
        try:
            self._send(started, timeout_s)
        finally:
            with self._lock:
                self._channel.oneway_sent()

    def reply(self, request: RemotingCommand, answer: RemotingCommand, timeout_s: float) -> None:
        """Answer a request of the server; nothing is sent for a oneway. Raises as ``request``."""
        if not request.is_oneway:
            self._send(answer, timeout_s)

    def forget(self, opaque: int) -> bool:
        """Stop waiting for a response; return whether the request was pending."""
        with self._lock:
            return self._channel.forget(opaque)

    def expire(self) -> list[Expired[T]]:
        """Return the requests whose deadline has passed; their responses will be dropped."""
        with self._lock:
            return self._channel.expire(self._clock.monotonic())

    def receive(self, timeout_s: float) -> list[Event[T]]:
        """Wait for at least one event; return all events in order of arrival, or an empty list after ``timeout_s``.

        Raises:
            ConnectionFailed: The connection is lost; it is closed.
            ProtocolError: The server sent an invalid frame; the connection is closed.
        """
        deadline = self._clock.monotonic() + timeout_s
        while True:
            events: list[Event[T]] = list(self.expire())
            now = self._clock.monotonic()
            until = deadline if (first := self.next_deadline) is None else min(deadline, first)
            try:
                events += self._receive_some(0.0 if events else max(0.0, until - now))
            except MetaqError:
                self._stream.close()
                if not events:
                    raise
            if events or self._clock.monotonic() >= deadline:
                return events

    def close(self) -> list[Pending[T]]:
        """Close the connection; return the requests that will not be answered."""
        self._stream.close()
        with self._lock:
            return self._channel.close()

    def _send(self, command: RemotingCommand, timeout_s: float) -> None:
        frame = encode(command)
        try:
            self._stream.send(frame, timeout_s)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(self.address, f"send {name_of(command.code)}", timeout_s) from error
        self._last_activity = self._clock.monotonic()

    def _receive_some(self, timeout_s: float) -> list[Event[T]]:
        size = self._stream.recv_into(self._buffer, timeout_s)
        if size is None:
            return []
        if size == 0:
            raise ConnectionFailed(self.address, "receive", "the server closed the connection")
        self._last_activity = self._clock.monotonic()
        return self._decode(size)

    def _decode(self, size: int) -> list[Event[T]]:
        events: list[Event[T]] = []
        try:
            for command in self._decoder.receive(self._buffer[:size]):
                events += self._event(command)
        except ProtocolError as error:
            self._stream.close()  # the next call finds it closed; earlier events are still returned
            if not events:
                raise ProtocolError(error.what, error.line, self.address) from error
        return events

    def _event(self, command: RemotingCommand) -> list[Event[T]]:
        with self._lock:
            event = self._channel.received(command)
        if event is None:
            return []
        if isinstance(event, ReceivedRequest):
            if not self._refuse_requests:
                return [event]
            self.reply(command, refusal(command), 1.0)
            return []
        if command.code == ResponseCode.GO_AWAY:
            self.going_away = True
        self._call_hooks(event.request, command)
        return [event]

    def _call_hooks(self, request: RemotingCommand, response: RemotingCommand) -> None:
        for hook in self._hooks:
            try:
                hook.after(self.address, request, response)
            except Exception:  # an error of the caller's hook must not affect other calls
                _LOG.exception("hook failed", extra={"fields": {"peer": self.address}})


def refusal(command: RemotingCommand) -> RemotingCommand:
    """Return the response to an unsupported request."""
    remark = f"request type {command.code} not supported"
    return command.reply(int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), remark=remark)
